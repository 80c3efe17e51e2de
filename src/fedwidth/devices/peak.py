"""How much memory a training step takes at its peak: the step is played with tensors that have no values.

Every storage that the forward pass, the loss and the backward pass make is counted from its birth to its end, as
autograd really frees it. Nothing is computed and nothing is allocated, so a model of any size can be asked. What
kernels take beside their results, and what the allocator loses, is a share of that on a processor (`WORKSPACE`), and
more for a few kernels (`workspace.py`); on a GPU every kernel is asked (`kernels.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, UnsupportedOperatorException
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.weak import WeakIdKeyDictionary

from fedwidth.devices.kernels import (
    Answer,
    Ask,
    CudnnLayers,
    Form,
    Result,
    asked,
    block_of,
    lay_flat,
)
from fedwidth.devices.workspace import LIBRARY, PROGRAM, program_of, workspace_of
from fedwidth.errors import OptionError
from fedwidth.gpu import autocast
from fedwidth.plan.isolation import call

Loss = Callable[[Any], Tensor]
WORKSPACE = 1.06
"""How much more a process takes than its tensors: copies that kernels make, pages that are not full. Measured by
benchmarks/memory.py with PyTorch 2.13 on a processor: 1.01 to 1.08 above 200 MB."""


@dataclass(frozen=True)
class Peak:
    """Bytes of one training step of a batch, parameters and buffers apart."""

    step: int
    """The most that is taken at once in the forward and the backward pass: activations, gradients, workspace."""
    gradients: int
    """Of the parameters that are trained: alive after the backward pass."""
    kept: int = 0
    """Of the step, what kernels keep for good: on a GPU workspaces of matrix products, on a processor their programs
    for half precision."""


class Living(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that operators make, for as long as they live.

    With `ask` they are counted as a GPU takes them, and whoever is asked says what a call takes beside.
    """

    def __init__(self, ask: Ask | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.peak = self.kept = 0
        self.ask, self.going_back = ask, False
        self._programs: set[Hashable] = set()
        self._known: Any = WeakIdKeyDictionary()

    def know(self, tensors: Any) -> None:
        """Do not count these: they are there already."""
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, Tensor):
                self._known[tensor.untyped_storage()] = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make the call and count what it made."""
        if self.ask is not None:
            return self._asked(self.ask, func, args, kwargs or {})
        made = func(*args, **(kwargs or {}))
        workspace = workspace_of(func, args)
        program = program_of(func, args)
        if program is not None and program not in self._programs:
            self._programs.add(program)
            self.kept += PROGRAM
        tensors = [tensor for tensor in tree_leaves(made) if isinstance(tensor, Tensor)]
        for number, tensor in enumerate(tensors):
            self._born(
                tensor, tensor.untyped_storage().nbytes() + (workspace.kept if number + 1 == len(tensors) else 0)
            )
        self.peak = max(self.peak, self.bytes + workspace.passing)
        return made

    def _asked(self, ask: Ask, func: Any, args: Any, kwargs: Any) -> Any:
        """Make the call, ask what it really takes, and let what it made be of the size that it really is."""
        answer: Answer | None = None
        try:
            made = func(*args, **kwargs)
        except (NotImplementedError, UnsupportedOperatorException):  # then only the kernel knows what it makes
            answer = ask(func, args, kwargs)
            if not answer.results:
                raise
            made = tree_unflatten([_empty(result) for result in answer.results], answer.structure)
        leaves, structure = tree_flatten(made)
        new = [isinstance(leaf, Tensor) and leaf.untyped_storage() not in self._known for leaf in leaves]
        if answer is None:
            changes = func._schema.is_mutable
            answer = ask(func, args, kwargs) if changes or any(new) else Answer()
        sizes = [leaf.untyped_storage().nbytes() if fresh else 0 for leaf, fresh in zip(leaves, new, strict=True)]
        if len(answer.results) == len(leaves):
            for number, result in enumerate(answer.results):
                if not new[number] or not isinstance(result, Result):
                    continue
                if result.given:
                    self.know(leaves[number])
                elif not _alike(leaves[number], result):
                    leaves[number] = _empty(result)
                    sizes[number] = result.bytes
                else:
                    sizes[number] = max(sizes[number], result.bytes)
        for leaf, fresh, size in zip(leaves, new, sizes, strict=True):
            if fresh:
                self._born(leaf, block_of(size))
        self.kept += answer.kept
        # Autograd adds up gradients in place, where tensors have values; if what was added to lives on, the next call
        # counts both.
        in_place = self.going_back and func is torch.ops.aten.add.Tensor and _same_shape(*args[:2])
        self.peak = max(self.peak, self.bytes + answer.passing - (block_of(sum(sizes)) if in_place else 0))
        return tree_unflatten(leaves, structure)

    def _born(self, tensor: Tensor, size: int) -> None:
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        self._known[storage] = weakref.finalize(storage, self._gone, size)
        self.bytes += size

    def _gone(self, size: int) -> None:
        self.bytes -= size


def _empty(result: Any) -> Any:
    return result.form.empty() if isinstance(result, Result) else result


def _alike(tensor: Tensor, result: Result) -> bool:
    # The device, too: attention's random seed lies on the processor, where its backward pass reads it.
    return Form.of(tensor)[:4] == result.form[:4]


def _same_shape(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape


def peak_of_step(
    module: nn.Module,
    inputs: Any,
    batch: int,
    loss: Loss,
    *,
    device: str | torch.device = "cpu",
    precision: str = "tf32",
    ask: Ask | None = None,
) -> Peak:
    """The peak of one step of a module (whose values do not matter) with batches of so many samples.

    `inputs` are an example, of any number of samples; `loss` makes one number of the model's output, and `precision` is
    that of training (`Settings.precision`). On a GPU (`device="cuda"`) it is the GPU's memory; its kernels are asked,
    or whoever is given as `ask`.
    """
    where = torch.device(device)
    if where.type not in ("cpu", "cuda"):
        raise OptionError(f"steps are played on cpu or cuda, not on '{where.type}'")
    if where.type == "cpu":
        return _play(module, inputs, batch, loss, where=where, ask=ask, precision=precision)
    if precision == "bf16" and any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
        raise OptionError("recurrent layers in bf16 cannot be played: ask with tf32, which takes more")
    if where.index is None:
        where = torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    with asked(where, precision) as kernels, CudnnLayers():
        return _play(module, inputs, batch, loss, where=where, ask=ask or kernels, precision=precision)


def _play(
    module: nn.Module,
    inputs: Any,
    batch: int,
    loss: Loss,
    *,
    where: torch.device,
    ask: Ask | None,
    precision: str,
) -> Peak:
    # Where kernels are asked, none may run beside: workspaces that it takes would be there already, and not be counted.
    with FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=ask is None):
        _forget_values(module, where)
        if where.type == "cuda":
            lay_flat(module)
        given = tree_map(lambda x: _of_batch(x, batch, where) if isinstance(x, Tensor) else x, inputs)
        module.train()
        living = Living(ask)
        living.know([*module.parameters(), *module.buffers()])
        with torch.enable_grad(), living:
            batch_inputs = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, given)
            with autocast(where, precision):
                found = loss(call(module, batch_inputs))
            living.going_back = True
            found.backward()  # type: ignore[no-untyped-call]
            sizes = [p.grad.untyped_storage().nbytes() for p in module.parameters() if p.grad is not None]
    # From the second step on, what kernels keep for good is there before the first call.
    if ask is None:
        kept = living.kept + (LIBRARY if precision == "bf16" else 0)
        return Peak(round(WORKSPACE * living.peak) + kept, sum(sizes), kept)
    return Peak(living.peak + living.kept, sum(map(block_of, sizes)), living.kept)


def _of_batch(tensor: Tensor, batch: int, where: torch.device) -> Tensor:
    shape = (batch, *tensor.shape[1:]) if tensor.dim() else tensor.shape
    return torch.empty(shape, dtype=tensor.dtype, device=where)


def _forget_values(module: nn.Module, where: torch.device) -> None:
    """Put tensors without values in the place of all parameters and buffers; ties stay."""
    new: dict[int, Tensor] = {}
    for owner in module.modules():
        for held in (owner._parameters, owner._buffers):
            for name, tensor in held.items():
                if tensor is None:
                    continue
                if id(tensor) not in new:
                    blank = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=where)
                    if isinstance(tensor, nn.Parameter):
                        blank = nn.Parameter(blank, requires_grad=tensor.requires_grad)
                    new[id(tensor)] = blank
                held[name] = new[id(tensor)]  # type: ignore[assignment]
