"""What one pass through a module takes: multiply-adds, operations, and what is kept for the backward pass, per sample.

It is counted on PyTorch's meta device, where no arithmetic is done, unless the model has to look at values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from fedwidth.plan.isolation import at_least_two, batch_size, call
from fedwidth.randomness import seeded

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""PyTorch's own normalisation layers."""


class Measured(NamedTuple):
    """Numbers for one sample; `Cost` says what each means."""

    macs: int
    operations: int
    activation_bytes: int


def measure(empty: Callable[[], nn.Module], filled: Callable[[], nn.Module], example_inputs: Any) -> Measured:
    """Measure the module that `empty` makes, whose values do not matter; where they do, the one that `filled` makes."""
    inputs = at_least_two(example_inputs)
    try:
        on_meta = moved(inputs, "meta")
        return measure_pass(empty().to("meta"), on_meta)
    except Exception:  # a model that looks at its values cannot run without them
        made = filled()
        return measure_pass(made, moved(inputs, device_of(made)))


def moved(inputs: Any, device: torch.device | str) -> Any:
    """Copies of the inputs on a device."""
    return tree_map(lambda x: x.to(device, copy=True) if isinstance(x, Tensor) else x, inputs)


def device_of(model: nn.Module) -> torch.device:
    """Where the module's tensors are, which need not be where those of a run are."""
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))


def measure_pass(model: nn.Module, inputs: Any) -> Measured:
    """Measure one pass of a batch; the model is left in training mode."""
    samples = batch_size(inputs)
    normalised = 0

    def count(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        nonlocal normalised
        normalised += output.numel()

    hooks = [module.register_forward_hook(count) for module in model.modules() if isinstance(module, NORMS)]
    try:
        with torch.no_grad(), seeded(0), FlopCounterMode(display=False) as counter:
            call(model.eval(), inputs)
    finally:
        for hook in hooks:
            hook.remove()
    flops = counter.get_flop_counts()["Global"]  # two per multiply-add
    macs = sum(flops.values()) // 2
    convolutions = sum(number for operator, number in flops.items() if "convolution" in str(operator)) // 2
    operations = convolutions + 2 * (macs - convolutions) + 4 * normalised
    return Measured(macs // samples, operations // samples, saved_bytes(model.train(), inputs) // samples)


def saved_bytes(model: nn.Module, inputs: Any) -> int:
    """Bytes that autograd keeps between the forward and the backward pass, without those of the model's own tensors."""
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}  # holds the tensors, so that no storage is freed and its address used again

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with torch.enable_grad(), seeded(0), saved_tensors_hooks(keep, lambda tensor: tensor):
        result = call(model, inputs)  # alive until the sum is taken
        total = sum(t.untyped_storage().nbytes() for storage, t in kept.items() if storage not in own)
        del result
    return total


def backward_macs(make: Callable[[], nn.Module], example_inputs: Any) -> int:
    """Multiply-adds of the backward pass of one sample; frozen layers take less, and those before all trained ones
    none."""
    inputs = at_least_two(example_inputs)
    try:
        on_meta = moved(inputs, "meta")
        return _backward_macs(make().to("meta"), on_meta)
    except Exception:  # as in `measure`
        made = make()
        return _backward_macs(made, moved(inputs, device_of(made)))


def _backward_macs(model: nn.Module, inputs: Any) -> int:
    with torch.enable_grad(), seeded(0):
        result = call(model.train(), inputs)
        ends = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if not ends:  # nothing is trained
            return 0
        with FlopCounterMode(display=False) as counter:
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    return int(counter.get_total_flops()) // 2 // batch_size(inputs)
