"""Positions that lie side by side, moved as slices: for a few rectangles that is much faster than a gather."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import torch
from torch import Tensor

Runs = list[tuple[slice, slice]]
"""Consecutive positions along one dimension, as pairs (slice of the full tensor, slice of the narrow one)."""

Rectangles = tuple[tuple[tuple[slice, ...], tuple[slice, ...]], ...]
"""Pairs (slices of the full tensor, slices of the narrow one) that together move all positions that are kept."""

MAX_RECTANGLES = 4
"""A window that wraps around in two dimensions has four; beyond that one gather is faster than many slices."""


def rectangles(runs_by_dimension: Iterable[Runs]) -> Rectangles | None:
    """Every combination of runs, one from each dimension; None where these are more than `MAX_RECTANGLES`."""
    found, total = [], 1
    for runs in runs_by_dimension:
        total *= len(runs)
        if total > MAX_RECTANGLES:
            return None
        found.append(runs)
    return tuple((tuple(full for full, _ in piece), tuple(narrow for _, narrow in piece)) for piece in product(*found))


def runs_of(kept: Tensor, size: int) -> Runs:
    """Consecutive runs of sorted positions as (slice of the full axis, slice of the narrow axis)."""
    if len(kept) == size:
        return [(slice(None), slice(None))]
    breaks = (torch.diff(kept) != 1).nonzero().flatten() + 1
    edges = [0, *breaks.tolist(), len(kept)]
    if len(edges) - 1 > MAX_RECTANGLES:
        return [(slice(0), slice(0))] * (MAX_RECTANGLES + 1)
    starts = kept[torch.tensor(edges[:-1])].tolist()
    return [
        (slice(start, start + stop - begin), slice(begin, stop))
        for start, begin, stop in zip(starts, edges[:-1], edges[1:], strict=True)
    ]
