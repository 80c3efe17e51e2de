"""Whether a device has one operation for batch norm and ReLU, and that operation."""

from __future__ import annotations

import warnings
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""The types of activations that it takes: its sums are in single precision."""


@lru_cache
def has_norm_relu(device: torch.device) -> bool:
    """Whether the operation works on this device: on a GPU, where Triton is installed and finds a compiler."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    try:
        for dtype in DTYPES:
            x = torch.ones(2, 1, 1, 1, device=device, dtype=dtype, requires_grad=True)
            one = torch.ones(1, device=device, requires_grad=True)
            torch.autograd.grad(norm_relu(x, one, one, 1e-5).sum(), [x, one])
    except torch.OutOfMemoryError:  # says nothing about Triton
        raise
    except Exception as error:  # whatever a compiler says
        message = str(error).partition("\n")[0]
        warnings.warn(f"Triton does not work here, so batch norm and ReLU are computed apart ({message})", stacklevel=2)
        return False
    return True


def takes_norm_relu(x: Tensor) -> bool:
    """Whether the operation takes an activation [samples, channels, height, width].

    Statistics need several values of a channel, and kernels count elements with 32 bits.
    """
    fits = x.shape[1] < x.numel() < 2**31
    return fits and x.is_cuda and x.dtype in DTYPES and x.is_contiguous(memory_format=torch.channels_last)


def norm_relu(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """ReLU of an activation, channels last, normalised by the batch's statistics."""
    from fedwidth.models.norm_relu_kernels import NormReLU  # Triton comes with PyTorch for GPUs alone

    out: Tensor = NormReLU.apply(x, weight, bias, epsilon)  # type: ignore[no-untyped-call]
    return out
