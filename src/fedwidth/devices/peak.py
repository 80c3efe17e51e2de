"""How much memory a training step takes at its peak: the step is played with tensors that have no values.

Every storage that the forward pass, the loss and the backward pass make is counted from its birth to its end, as
autograd really frees it. Nothing is computed and nothing is allocated, so a model of any size can be asked. What
kernels take beside their results, and what the allocator loses, is a share of that (`WORKSPACE`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from fedwidth.devices.workspace import workspace_of
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


class Living(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that operators make, for as long as they live."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.peak = 0
        self._known: Any = WeakIdKeyDictionary()

    def know(self, tensors: Any) -> None:
        """Do not count these: they are there already."""
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, Tensor):
                self._known[tensor.untyped_storage()] = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make the call and count what it made."""
        made = func(*args, **(kwargs or {}))
        workspace = workspace_of(func, args)
        tensors = [tensor for tensor in tree_leaves(made) if isinstance(tensor, Tensor)]
        for number, tensor in enumerate(tensors):
            self._born(tensor, workspace.kept if number + 1 == len(tensors) else 0)
        self.peak = max(self.peak, self.bytes + workspace.passing)
        return made

    def _born(self, tensor: Tensor, workspace: int) -> None:
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        size = storage.nbytes() + workspace
        self._known[storage] = weakref.finalize(storage, self._gone, size)
        self.bytes += size

    def _gone(self, size: int) -> None:
        self.bytes -= size


def peak_of_step(module: nn.Module, inputs: Any, batch: int, loss: Loss) -> Peak:
    """The peak of one step of a module (whose values do not matter) with batches of so many samples.

    `inputs` are an example, of any number of samples; `loss` makes one number of the model's output.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        _forget_values(module)
        given = tree_map(lambda x: _of_batch(x, batch) if isinstance(x, Tensor) else x, inputs)
        module.train()
        living = Living()
        living.know([*module.parameters(), *module.buffers()])
        with torch.enable_grad(), living:
            batch_inputs = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, given)
            loss(call(module, batch_inputs)).backward()  # type: ignore[no-untyped-call]
            gradients = sum(p.grad.untyped_storage().nbytes() for p in module.parameters() if p.grad is not None)
    return Peak(round(WORKSPACE * living.peak), gradients)


def _of_batch(tensor: Tensor, batch: int) -> Tensor:
    shape = (batch, *tensor.shape[1:]) if tensor.dim() else tensor.shape
    return torch.empty(shape, dtype=tensor.dtype, device="cpu")


def _forget_values(module: nn.Module) -> None:
    """Put tensors without values in the place of all parameters and buffers; ties stay."""
    new: dict[int, Tensor] = {}
    for owner in module.modules():
        for held in (owner._parameters, owner._buffers):
            for name, tensor in held.items():
                if tensor is None:
                    continue
                if id(tensor) not in new:
                    blank = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
                    if isinstance(tensor, nn.Parameter):
                        blank = nn.Parameter(blank, requires_grad=tensor.requires_grad)
                    new[id(tensor)] = blank
                held[name] = new[id(tensor)]  # type: ignore[assignment]
