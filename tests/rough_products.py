"""Products as a GPU multiplies in TF32, played on the CPU: what they multiply in single precision is rounded first."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("mm", "bmm", "addmm", "mv", "dot")


class RoughProducts(TorchDispatchMode):
    """Within it, matrix products see ten bits of the mantissa of float32 numbers."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in PRODUCTS:
            args = [rounded(each) for each in args]
        return func(*args, **(kwargs or {}))


def rounded(value):
    """The nearest number of TF32, where it is a tensor in single precision."""
    if not isinstance(value, Tensor) or value.dtype != torch.float32:
        return value
    return ((value.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
