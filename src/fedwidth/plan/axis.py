"""The shape of one tensor dimension, as the plan keeps it.

A dimension is rarely one plain list of units: the output of a fused qkv projection is three times (heads x head size),
a flattened feature map is (channel x height x width). An `Axis` is a small immutable tree that says so:

    Units(group, n)        n units that are kept or dropped together with every other axis of that width group
    Fixed(n, reason)       n positions that always stay, and why
    Product(major … minor) position = major * size(minor) + minor
    Concat(first … last)   the parts one after the other

Given the units kept of each group, `positions` lists which positions of the dimension remain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

KEPT = "kept whole as asked"
"""The reason of dimensions that the caller keeps whole."""


@dataclass(frozen=True)
class Units:
    """A leaf whose units belong to a width group."""

    group: str
    size: int


@dataclass(frozen=True)
class Fixed:
    """A leaf that is never sliced, with the reason a person can read."""

    size: int
    reason: str


@dataclass(frozen=True)
class Product:
    """Row-major product of its parts, the first varying slowest."""

    parts: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """Number of positions."""
        return math.prod(part.size for part in self.parts)


@dataclass(frozen=True)
class Concat:
    """Its parts laid one after the other."""

    parts: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """Number of positions."""
        return sum(part.size for part in self.parts)


Axis = Units | Fixed | Product | Concat


def leaves(axis: Axis) -> Iterator[Units | Fixed]:
    """Every leaf, first to last."""
    if isinstance(axis, (Units, Fixed)):
        yield axis
    else:
        for part in axis.parts:
            yield from leaves(part)


def groups_of(axis: Axis) -> tuple[str, ...]:
    """Names of the width groups in this dimension, each once."""
    return tuple(dict.fromkeys(leaf.group for leaf in leaves(axis) if isinstance(leaf, Units)))


def kept(axis: Axis, counts: Mapping[str, int]) -> int:
    """How many positions remain when group g keeps counts[g] units (all of them where it is not named)."""
    match axis:
        case Units(group, size):
            return counts.get(group, size)
        case Fixed(size, _):
            return size
        case Product(parts):
            return math.prod(kept(part, counts) for part in parts)
        case Concat(parts):
            return sum(kept(part, counts) for part in parts)


def positions(axis: Axis, units: Mapping[str, Tensor]) -> Tensor:
    """Which positions remain when group g keeps units[g] (all of them where it is not named), sorted if those are.

    >>> qkv = Concat((Product((Fixed(2, "heads"), Units("head", 3))), Units("value", 2)))
    >>> positions(qkv, {"head": torch.tensor([0, 2])}).tolist()
    [0, 2, 3, 5, 6, 7]
    """
    match axis:
        case Units(group, size):
            return units[group] if group in units else torch.arange(size)
        case Fixed(size, _):
            return torch.arange(size)
        case Product(parts):
            result = torch.zeros(1, dtype=torch.long)
            for part in parts:
                result = (result[:, None] * part.size + positions(part, units)[None, :]).flatten()
            return result
        case Concat(parts):
            found, offset = [], 0
            for part in parts:
                found.append(positions(part, units) + offset)
                offset += part.size
            return torch.cat(found)


def tiling(axis: Axis, counts: Mapping[str, int]) -> Tensor:
    """For every full position the narrow position it repeats when the narrow axis is laid out block by block.

    >>> tiling(Concat((Units("a", 4), Fixed(1, "bias"))), {"a": 2}).tolist()
    [0, 1, 0, 1, 2]
    """
    match axis:
        case Units(group, size):
            return torch.arange(size) % counts[group]
        case Fixed(size, _):
            return torch.arange(size)
        case Product(parts):
            result = torch.zeros(1, dtype=torch.long)
            for part in parts:
                result = (result[:, None] * kept(part, counts) + tiling(part, counts)[None, :]).flatten()
            return result
        case Concat(parts):
            found, offset = [], 0
            for part in parts:
                found.append(tiling(part, counts) + offset)
                offset += kept(part, counts)
            return torch.cat(found)


def owners(axis: Axis, group: str) -> Tensor:
    """The unit of this group that every position belongs to, -1 where it belongs to none.

    >>> owners(Concat((Product((Units("a", 2), Fixed(2, "pixels"))), Fixed(1, "bias"))), "a").tolist()
    [0, 0, 1, 1, -1]
    """
    match axis:
        case Units(name, size):
            return torch.arange(size) if name == group else torch.full((size,), -1)
        case Fixed(size, _):
            return torch.full((size,), -1)
        case Product(parts):
            result = torch.full((1,), -1)
            for part in parts:
                outer, inner = result[:, None].expand(-1, part.size), owners(part, group)[None, :]
                result = torch.where(outer < 0, inner, outer).flatten()
            return result
        case Concat(parts):
            return torch.cat([owners(part, group) for part in parts])
