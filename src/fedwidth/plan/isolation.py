"""Run a model and leave no trace in it: attributes, training flags and random numbers are as they were afterwards."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map

from fedwidth.errors import PlanError
from fedwidth.randomness import host_kept

CONTAINERS = (dict, OrderedDict, list, set)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Whatever the body sets on the model's modules is undone, and so is its use of random numbers."""
    attributes = Attributes(model)
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    cpu = torch.get_rng_state()
    with host_kept():
        try:
            yield
        finally:
            attributes.put_back()
            torch.set_rng_state(cpu)
            if cuda is not None:
                torch.cuda.set_rng_state_all(cuda)


class Attributes:
    """What the modules of a model hold, to be put back: all but the values of parameters and buffers.

    Putting it back takes half a microsecond a module, so that it can be done for every client.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [(module, dict(vars(module))) for module in model.modules()]
        values = [value for _, attributes in self._modules for value in attributes.values()]
        held = [value for value in values if type(value) in CONTAINERS]
        self._contents = [(value, value.copy()) for value in held if value]
        self._empty = [value for value in held if not value]
        plain = [value.detach() for value in values if isinstance(value, Tensor) and not value.is_inference()]
        self._tensors = [(tensor, tensor._version, tensor.clone()) for tensor in plain]

    def put_back(self) -> None:
        """Undo whatever was set since."""
        for module, attributes in self._modules:
            vars(module).clear()
            vars(module).update(attributes)
        for container in self._empty:
            if container:
                container.clear()
        for container, content in self._contents:
            _refill(container, content)
        for place, (tensor, version, value) in enumerate(self._tensors):
            if tensor._version != version:  # somebody has written into it
                tensor.copy_(value)
                self._tensors[place] = tensor, tensor._version, value


def _refill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(content)
    else:
        container.update(content)


def set_mode(model: nn.Module, *, training: bool) -> None:
    """Put the model into training mode in its own way, or every module of it into evaluation mode."""
    if training:
        model.train()
    else:
        for module in model.modules():
            module.training = False


@contextmanager
def plain_operators(model: nn.Module, *, fused_attention: bool = False) -> Iterator[None]:
    """No gradients, and simple operators in place of fused ones; of these, rules know attention alone."""
    # The public context managers for the last two also set, and warn about, flags that are not meant here.
    before = torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled(), torch._C._get_cudnn_enabled()
    simple = not any(isinstance(module, nn.RNNBase) for module in model.modules())
    _set_fused(False, simple and before[1], simple and before[2])
    try:
        with torch.no_grad(), nullcontext() if fused_attention else sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        _set_fused(*before)


def _set_fused(attention: bool, mkldnn: bool, cudnn: bool) -> None:
    torch.backends.mha.set_fastpath_enabled(attention)
    torch._C._set_mkldnn_enabled(mkldnn)
    torch._C._set_cudnn_enabled(cudnn)


def call(model: nn.Module, inputs: Any) -> Any:
    """model(tensor), model(*tuple) or model(**dict)."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def picked(result: Any, output: Callable[[Any], Any] | None) -> Any:
    """The part of a model's output that counts."""
    if output is None:
        return result
    try:
        return output(result)
    except Exception as error:
        raise PlanError(f"output= failed on what the model gave, a {type(result).__name__}: {error}") from error


def at_least_two(inputs: Any) -> Any:
    """The inputs, with a single sample repeated: in training, a norm over the batch needs two."""
    if batch_size(inputs) > 1:
        return inputs
    return tree_map(lambda x: torch.cat([x, x]) if isinstance(x, Tensor) and x.dim() and len(x) == 1 else x, inputs)


def batch_size(inputs: Any) -> int:
    """The number of samples: the length of the first tensor's first dimension."""
    return next((len(x) for x in tree_leaves(inputs) if isinstance(x, Tensor) and x.dim()), 1)
