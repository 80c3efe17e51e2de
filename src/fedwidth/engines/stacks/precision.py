"""Forward passes of stacked clients in the precision of the settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedwidth.gpu import autocast

_NORMS = (F.batch_norm, F.layer_norm, torch.batch_norm, torch.layer_norm)


@contextmanager
def stacked_autocast(device: torch.device, precision: str) -> Iterator[None]:
    """The `autocast` of one client, in which many can be stacked."""
    with autocast(device, precision):
        if device.type != "cpu" or precision != "bf16":
            yield
            return
        with _NormsInSinglePrecision():
            yield


class _NormsInSinglePrecision(TorchFunctionMode):
    """Converts what batch and layer norms read to the type of their weights, and what they made back.

    On a processor they take inputs in half precision and weights in single precision, and compute in single precision;
    but PyTorch's rules for vmap do not know what to do with both in the backward pass.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make the call."""
        kwargs = kwargs or {}
        inputs = args[0] if args else kwargs.get("input")
        if func not in _NORMS or inputs.dtype != torch.bfloat16:
            return func(*args, **kwargs)
        weights = (x for x in (*args[1:], *kwargs.values()) if isinstance(x, Tensor) and x is not inputs)
        wide = inputs.to(next((x.dtype for x in weights), inputs.dtype))
        made = func(wide, *args[1:], **kwargs) if args else func(**{**kwargs, "input": wide})
        return made.to(inputs.dtype)
