"""The memory that tensors share: which of them are views of one another."""

from __future__ import annotations

from torch import Tensor


def storage_of(tensor: Tensor) -> int:
    """What a tensor shares with all its views, wherever it lies; 0 where there is no such thing (sparse ones)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return 0


def pointer_of(tensor: Tensor) -> int:
    """Address of the tensor's memory, 0 where there is none (meta tensors, empty ones)."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
