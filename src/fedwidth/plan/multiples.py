"""Widths of which only multiples of some number of units can be kept, because an operator takes no others."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

from fedwidth.plan.node import CONCAT, LEAF, Node, find, leaves


def find_multiples(stated: Iterable[tuple[Node, int]], groups: Collection[Node]) -> dict[Node, int]:
    """The groups that keep a multiple of so many units, so that each of these axes keeps a multiple of its number."""
    found: dict[Node, int] = {}
    for axis, number in stated:
        for leaf, needed in _needed(axis, number, groups):
            if leaf.size % needed == 0:  # otherwise the whole of it would not do either
                found[leaf] = math.lcm(found.get(leaf, 1), needed)
    return {leaf: number for leaf, number in found.items() if number > 1}


def _needed(axis: Node, number: int, groups: Collection[Node]) -> Iterator[tuple[Node, int]]:
    axis = find(axis)
    if axis.kind == LEAF:
        if axis in groups:
            yield axis, number
        return
    changing = [part for part in axis.parts if any(leaf in groups for leaf in leaves(part))]
    if axis.kind != CONCAT:  # what always stays of a product is a factor already
        fixed = math.prod(find(part).size for part in axis.parts if part not in changing)
        number //= math.gcd(number, fixed)
    for part in changing:
        yield from _needed(part, number, groups)
