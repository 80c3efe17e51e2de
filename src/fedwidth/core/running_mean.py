"""A weighted mean that is moved towards each new value: mean += (value - mean) * weight / (weight so far + weight).

Not a quotient of sums: one value, or several that agree, then give exactly that value in every dtype, so training that
changes nothing changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

Weight = float | Tensor
"""One number, or a tensor that broadcasts over the values (a client weighs nothing in rows of labels it lacks)."""


def ratio(weight: Weight, total: Weight) -> Weight:
    """The share of a weight in a total, and 0 where nothing weighs anything."""
    if isinstance(total, float):
        return weight / total
    if not isinstance(weight, Tensor):  # a weight is above 0, so the total is too
        # Not `weight / total`: torch computes number / tensor as number * (1 / tensor), not 1 where they agree.
        # The numerator stays on the CPU, from where it travels with the division: one kernel less on a GPU.
        return torch.full((), weight, dtype=total.dtype) / total
    return torch.where(total > 0, weight / total, 0.0)


def interpolate(mean: Tensor, value: Tensor, share: Weight) -> None:
    """Move a mean towards a value in place: mean += (value - mean) * share.

    It is exact at share 0 and 1, and where mean and value agree.
    """
    if isinstance(share, Tensor):
        mean.lerp_(value, share.to(mean.dtype))
    elif share == 1.0:
        mean.copy_(value)
    else:
        mean.lerp_(value, share)


def interpolated(mean: Tensor, value: Tensor, share: Weight) -> Tensor:
    """A new tensor, mean + (value - mean) * share: one pass less over memory than a copy and then `interpolate`."""
    if isinstance(share, Tensor):
        return mean.lerp(value, share.to(mean.dtype))
    # Not a clone of the value: it may lie otherwise in memory than the state it becomes part of.
    return torch.empty_like(mean).copy_(value) if share == 1.0 else mean.lerp(value, share)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a dtype is averaged: half precision in single, integers in double, others in their own."""
    if dtype.is_complex:
        return torch.complex64 if dtype.itemsize < 8 else dtype
    if dtype.is_floating_point:
        return torch.float32 if dtype.itemsize < 4 else dtype
    return torch.float64


def accumulable(tensor: Tensor) -> Tensor:
    """The tensor, converted to the dtype in which it is averaged."""
    return tensor.to(sum_dtype(tensor.dtype))
