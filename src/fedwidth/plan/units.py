"""From a capacity to units: how many a group keeps, and whether units given by hand can be kept."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedwidth.errors import CapacityError, OptionError, PlanError, SelectionError

if TYPE_CHECKING:
    from fedwidth.plan.plan import Group

ROUNDINGS = ("floor", "ceil")


def check_capacity(capacity: float | Fraction) -> None:
    """Raise `CapacityError` unless 0 < capacity <= 1."""
    if isinstance(capacity, bool) or not isinstance(capacity, (int, float, Fraction)):
        # Not numpy's float32 either: its 0.3 is 0.30000001, of which 10 units have 4 when rounded up.
        raise CapacityError(
            f"capacity must be a number above 0 and at most 1 (an int, float or Fraction), not {capacity!r}"
        )
    if not 0 < capacity <= 1:
        raise CapacityError(f"capacity must be a number above 0 and at most 1, not {capacity}")


def check_rounding(rounding: str) -> None:
    """Raise `OptionError` unless it is a known way to round."""
    if not isinstance(rounding, str) or rounding not in ROUNDINGS:
        raise OptionError(f"rounding must be 'floor' or 'ceil', not {rounding!r}")


def count_units(size: int, capacity: float | Fraction, rounding: str) -> int:
    """floor or ceil of capacity * size, at least one; forgiving of a float's noise (0.29 * 100 is 29 units).

    >>> count_units(10, 0.25, "floor"), count_units(10, 0.25, "ceil"), count_units(3, 1 / 16, "floor")
    (2, 3, 1)
    """
    exact = capacity * size
    noise = 0 if isinstance(capacity, Fraction) else 1e-9
    units = math.floor(exact + noise) if rounding == "floor" else math.ceil(exact - noise)
    return max(1, min(size, units))


def check_units(group: Group, units: Iterable[int] | Tensor) -> Tensor:
    """`units` as a sorted LongTensor; a typed error if they are no numbers, none, repeated or out of range."""
    try:
        chosen = whole_numbers(units).cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError):
        dtype = getattr(units, "dtype", None)
        what = reprlib.repr(units) if dtype is None else f"a {type(units).__name__} of {dtype}"
        raise SelectionError(f"units of group '{group.name}' must be whole numbers, not {what}") from None
    if not chosen.numel():
        raise CapacityError(f"group '{group.name}' keeps no unit; at least one of its {group.size} must stay")
    ordered = np.sort(chosen.numpy())  # numpy: a third of the time of as many small operations of torch
    if ordered[0] < 0 or ordered[-1] >= group.size:
        raise PlanError(f"group '{group.name}' has units 0 to {group.size - 1}, not {ordered[0]} to {ordered[-1]}")
    if (ordered[1:] == ordered[:-1]).any():
        raise PlanError(f"group '{group.name}' was given a unit twice")
    return torch.from_numpy(ordered)


def whole_numbers(values: Iterable[int] | Tensor) -> Tensor:
    """Integers as a flat LongTensor; `TypeError` for others (a mask of True and False, 1.5), which would be cut."""
    tensor = values if isinstance(values, Tensor) else torch.as_tensor(list(values))
    if tensor.dtype == torch.long and tensor.dim() == 1:
        return tensor
    if tensor.numel() and (tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex()):
        raise TypeError(f"{tensor.dtype} are no positions")
    return tensor.flatten().long()
