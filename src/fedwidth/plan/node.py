"""The axis tree while a model is being traced: what is known so far about every tensor dimension.

A `Node` starts as a leaf and only ever becomes more precise (`restructure`). A node that turned out to be another one
points to it, as in a union-find; a leaf that turned out to have structure points to the product or concatenation it is.
When the trace is over, equal leaves are the width groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

LEAF, PRODUCT, CONCAT = "leaf", "product", "concat"

INPUT = "model input"
"""The reason of the dimensions of what a model is given."""

UNREACHED = "not used in the forward pass"
"""The reason of the dimensions of what no pass has computed with."""


class Unaligned(Exception):
    """Two structures whose borders do not meet, e.g. 6 x 4 units read as 4 x 6."""


class Node:
    """A dimension: a leaf of `size` units, a row-major product or a concatenation of `parts`."""

    __slots__ = ("kind", "live", "parts", "reason", "same", "size")

    def __init__(self, size: int, reason: str | None = None, kind: str = LEAF, parts: Iterable[Node] = ()) -> None:
        self.size = int(size)
        self.kind = kind
        self.parts = list(parts)
        self.same: Node | None = None
        """The node this one turned out to be."""
        self.reason = reason if self.size > 1 or reason else "size 1"
        """Why a leaf may not be sliced; None while it may."""
        self.live = False
        """Whether a leaf took part in a computation (a slice that nothing reads does not)."""

    def __repr__(self) -> str:
        node = find(self)
        if node.kind == LEAF:
            return f"{node.size}{'!' if node.reason else ''}"
        return "(" + (" x " if node.kind == PRODUCT else " + ").join(map(repr, node.parts)) + ")"


def find(node: Node) -> Node:
    """The node that now stands for this one."""
    while node.same is not None:
        if node.same.same is not None:
            node.same = node.same.same
        node = node.same
    return node


def factors(node: Node) -> list[Node]:
    """Major … minor factors, none of them a product, without those of size 1."""
    node = find(node)
    if node.kind == PRODUCT:
        return [factor for part in node.parts for factor in factors(part)]
    return [node] if node.size != 1 else []


def segments(node: Node) -> list[Node]:
    """First … last segments, none of them a concatenation, without empty ones."""
    node = find(node)
    if node.kind == CONCAT:
        return [segment for part in node.parts for segment in segments(part)]
    return [node] if node.size else []


def leaves(node: Node) -> Iterator[Node]:
    """Every leaf, first to last."""
    node = find(node)
    if node.kind == LEAF:
        yield node
    else:
        for part in node.parts:
            yield from leaves(part)


def product(parts: Iterable[Node]) -> Node:
    """The row-major product of nodes."""
    found = [factor for part in parts for factor in factors(part)]
    if len(found) == 1:
        return found[0]
    return Node(math.prod(part.size for part in found), kind=PRODUCT, parts=found) if found else Node(1)


def concat(parts: Iterable[Node]) -> Node:
    """Nodes laid one after the other."""
    found = [segment for part in parts for segment in segments(part)]
    if len(found) == 1:
        return found[0]
    return Node(sum(part.size for part in found), kind=CONCAT, parts=found) if found else Node(0)


def freeze(node: Node, reason: str) -> bool:
    """Forbid slicing any part of it; True if that changed anything."""
    changed = False
    for leaf in leaves(node):
        if leaf.reason is None:
            leaf.reason, changed = reason, True
    return changed


def use(node: Node) -> None:
    """Note that a computation read it."""
    for leaf in leaves(node):
        leaf.live = True


def is_fixed(node: Node) -> bool:
    """Whether no part of it may be sliced."""
    return all(leaf.reason is not None for leaf in leaves(node))


def kept(node: Node, counts: Mapping[Node, int]) -> int:
    """How many positions remain when a leaf keeps counts[leaf] units (all where it is not named)."""
    node = find(node)
    if node.kind == LEAF:
        return counts.get(node, node.size)
    sizes = (kept(part, counts) for part in node.parts)
    return math.prod(sizes) if node.kind == PRODUCT else sum(sizes)
