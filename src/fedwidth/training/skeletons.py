"""Modules that take turns holding sub-models of one size: made once, and filled anew for every client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedwidth.core.narrow import skeleton
from fedwidth.core.part import Part
from fedwidth.core.submodel import state_of
from fedwidth.data import Data
from fedwidth.data.records import moved
from fedwidth.data.trees import mapped
from fedwidth.errors import UpdateError
from fedwidth.objectives import call
from fedwidth.plan.isolation import Attributes, untouched
from fedwidth.plan.plan import Plan
from fedwidth.plan.trace import tensors_of


def make_skeleton(part: Part, model: nn.Module, plan: Plan, *, device: torch.device, channels_last: bool) -> nn.Module:
    """A module of a part's size on the device, not yet filled."""
    made = part.module(model, plan)
    # A model without values (on the meta device) is enough to cut from: tasks bring the values.
    made = emptied(made, device) if is_meta(made) else made.to(device)
    if channels_last:
        made = made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return made


@dataclass(frozen=True)
class Skeleton:
    """A module in which sub-models take turns, and how it was before the first."""

    module: nn.Module
    attributes: Attributes
    buffers: Buffers

    @classmethod
    def of(cls, module: nn.Module) -> Skeleton:
        """A module that nobody has trained in yet."""
        return cls(module, Attributes(module), Buffers(module))


class Buffers:
    """The buffers of a module: where its code puts another tensor in place of one, that is to be its value.

    So `self.mean = 0.9 * self.mean + …` in a forward pass does what `self.mean.mul_(0.9).add_(…)` does.
    """

    def __init__(self, module: nn.Module) -> None:
        self._all = [
            (owner._buffers, name, buffer)
            for owner in module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]

    @torch.no_grad()
    def settle(self) -> None:
        """Write the tensors that were put in place of buffers into these, which are in their places again."""
        replaced = [
            (held, name, buffer, found.clone())  # it may be another's buffer, or a view of this one
            for held, name, buffer in self._all
            if (found := held.get(name)) is not buffer and found is not None
        ]
        for held, name, buffer, value in replaced:
            if value.shape != buffer.shape:
                raise UpdateError(
                    f"training gave the buffer '{name}' the shape {list(value.shape)}: it must stay"
                    f" {list(buffer.shape)}"
                )
            buffer.copy_(value)
            held[name] = buffer


def fill(module: nn.Module, sub: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy a sub-model into a module of its size; returns the module's own tensors by name, detached."""
    found = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    tensors = {name: tensor.detach() for name, tensor in found if name in sub}
    for name, tensor in tensors.items():
        tensor.copy_(sub[name])
    return tensors


def is_meta(module: nn.Module) -> bool:
    """Whether the module has shapes only, no values."""
    return any(tensor.is_meta for tensor in module.parameters())


def emptied(module: nn.Module, device: torch.device) -> nn.Module:
    """The same module with memory on the device in place of shapes only, not yet filled.

    `nn.Module.to_empty` does so too, but imports half of PyTorch's compiler for it: 30 MB, which a small device lacks.
    """

    def empty(tensor: Tensor) -> Tensor:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)

    module._apply(empty)  # type: ignore[no-untyped-call]
    return module


def takes_channels_last(
    model: nn.Module, plan: Plan, data: Data, device: torch.device, *, freezes: bool = False, threads: int = 1
) -> bool:
    """Whether the model convolves, and computes with its channels last in memory; `x.view(n, -1)` cannot.

    `freezes` says that clients freeze some of its layers, `threads` how many of a processor's threads train it: those
    that are at hand while this is asked do not matter.
    """
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return False
    if is_meta(model):  # a narrow one of zeros: on the meta device views of any layout seem to work
        whole = emptied(skeleton(model, plan, plan.counts(0.25, "ceil")), device)
        values = {name: torch.zeros_like(tensor) for name, tensor in tensors_of(whole)[0].items()}
    else:
        whole, values = skeleton(model, plan, {}).to(device), state_of(model)
    crashes = Crashes(freezes, threads)
    with untouched(whole):
        fill(whole, values)
        inputs = moved(data.example(), device)
        try:
            whole = whole.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
            with torch.enable_grad(), crashes:
                call(whole, with_channels_last(inputs))
        except RuntimeError:
            return False
    return device.type != "cpu" or not crashes.found


class Crashes(TorchFunctionMode):
    """Finds what PyTorch 2.13 cannot train on processors with channels last: it ends the whole process in the backward
    pass of

    - group norms whose input needs no gradient (they come first, or what comes before is frozen),
    - 1x1 convolutions with a stride, with less than 16 input channels and several threads: it writes where it must not.
      The narrowest sub-model may have so few, so such a convolution counts whatever its width.
    """

    def __init__(self, freezes: bool, threads: int) -> None:
        super().__init__()
        self.freezes, self.threads, self.found = freezes, threads, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at a call, and make it."""
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if func not in (functional.group_norm, torch.group_norm, functional.conv2d):
            return made
        inputs = args[0] if args else kwargs["input"]
        if func is not functional.conv2d:
            self.found |= inputs.dim() == 4 and (self.freezes or not inputs.requires_grad)
        elif self.threads > 1:
            weight = args[1] if len(args) > 1 else kwargs["weight"]
            self.found |= weight.shape[2:] == (1, 1) and made.shape[2:] != inputs.shape[2:]
        return made


def with_channels_last(inputs: Any) -> Any:
    """Inputs with the channels of images [samples, channels, height, width] last in memory."""
    if isinstance(inputs, Tensor):
        return inputs.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else inputs
    return mapped(with_channels_last, inputs)
