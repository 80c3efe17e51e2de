"""Wide models made of narrow ones: what `fedtile`, `fedmosaic` and `fedladder` share.

A width group of K units at a width of n units, n dividing K, is K/n blocks of n units each: unit u is number u mod n of
block u div n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.core.submodel import put, with_ties
from fedwidth.devices.capacity import parse_capacity
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.methods.definition import Option
from fedwidth.plan.axis import Axis, Concat, Fixed, Product, Units, groups_of
from fedwidth.plan.plan import Plan

NO_BLOCK = -1


def width_option(help: str) -> Option:
    """An option whose value is a width, or unset."""
    return Option(None, 'a width above 0 and at most 1, e.g. 0.25 or "1/4", or unset', _is_width, help)


def width_of(value: float | str) -> float:
    """The width an option stands for.

    >>> width_of("1/4"), width_of(0.5)
    (0.25, 0.5)
    """
    return parse_capacity(str(value))


def _is_width(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False
    try:
        width_of(value)
    except FedwidthError:
        return False
    return True


def block_counts(plan: Plan, width: float, method: str) -> dict[str, int]:
    """How many units of each group a block of this width has; the blocks must fill the group evenly."""
    counts = plan.counts(width, "floor")
    for name, group in plan.groups.items():
        if group.size % counts[name]:
            raise OptionError(
                f"{method} cuts layers into equal blocks, but at width {width:g} group '{name}' keeps {counts[name]} of"
                f" {group.size} units: choose a width that divides all groups"
            )
    return counts


def divided(plan: Plan, name: str, counts: Mapping[str, int]) -> list[int]:
    """The dimensions of a tensor that consist of more than one block."""
    return [
        dim
        for dim, axis in enumerate(plan.axes[name])
        if any(counts[group] < plan.groups[group].size for group in groups_of(axis))
    ]


def blocks_of(axis: Axis, counts: Mapping[str, int]) -> Tensor:
    """The block of every position, `NO_BLOCK` where a position belongs to none.

    >>> blocks_of(Concat((Product((Units("a", 4), Fixed(2, "pixels"))), Fixed(1, "bias"))), {"a": 2}).tolist()
    [0, 0, 0, 0, 1, 1, 1, 1, -1]
    """
    match axis:
        case Units(group, size):
            return torch.arange(size) // counts[group]
        case Fixed(size, _):
            return torch.full((size,), NO_BLOCK)
        case Product(parts):
            result = torch.full((1,), NO_BLOCK)
            for part in parts:  # the block of the first part that has one
                inner = blocks_of(part, counts)
                outer = result[:, None].expand(-1, len(inner))
                result = torch.where(outer == NO_BLOCK, inner[None, :], outer).flatten()
            return result
        case Concat(parts):
            return torch.cat([blocks_of(part, counts) for part in parts])


def number_of_blocks(plan: Plan, axis: Axis, counts: Mapping[str, int]) -> int:
    """How many blocks a dimension consists of."""
    return math.gcd(*(plan.groups[group].size // counts[group] for group in groups_of(axis)))


def zeroed_outside(state: Mapping[str, Tensor], plan: Plan, networks: Sequence[Index]) -> dict[str, Tensor]:
    """A state in which every weight is 0 that lies in none of these sub-models."""
    result = dict(state)
    for name in plan.parameters:
        if name in plan.tied or not any(index.sliced(name) for index in networks):
            continue
        held = torch.zeros_like(result[name], dtype=torch.bool)
        for index in networks:
            put(held, held.new_ones(index.shapes[name]), index, name)
        result[name] = result[name] * held
    return with_ties(result, plan)
