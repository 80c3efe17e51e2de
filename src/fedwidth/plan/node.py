"""The axis tree while a model is being traced: what is known so far about every tensor dimension.

A `Node` starts as a leaf and only ever becomes more precise. Operators say that two dimensions are the same (`unify`),
that one is several laid out row by row (`regroup`, as a view does) or one after the other (`cut`, as a split does). A
node that turned out to be another one points to it, as in a union-find; a leaf that turned out to have structure points
to the product or concatenation it is. When the trace is over, equal leaves are the width groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

LEAF, PRODUCT, CONCAT = "leaf", "product", "concat"


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


def _refine(leaf: Node, parts: list[Node], kind: str) -> None:
    """The leaf turns out to be made of new leaves, which inherit what is known of it."""
    for part in parts:
        part.live = leaf.live
        part.reason = part.reason or leaf.reason
    leaf.same = Node(leaf.size, kind=kind, parts=parts)


def _split_major(node: Node, size: int) -> tuple[Node, Node]:
    """A leaf or concatenation as (major part of `size`, minor part)."""
    if node.size % size:
        raise Unaligned
    minor_size = node.size // size
    if node.kind == LEAF:
        parts = [Node(size), Node(minor_size)]
        _refine(node, parts, PRODUCT)
        return parts[0], parts[1]
    majors: list[Node] = []
    minors: list[Node] = []
    for segment in segments(node):
        if segment.size % minor_size:
            raise Unaligned
        major, minor = regroup([segment], [segment.size // minor_size, minor_size])
        majors.append(major)
        minors.append(minor)
    for minor in minors[1:]:
        unify(minors[0], minor)
    return concat(majors), minors[0]


def regroup(nodes: Iterable[Node], sizes: Iterable[int], made: list[Node] | None = None) -> list[Node]:
    """Read row-major `nodes` as dimensions of other sizes, as a view does; `made` collects leaves split on the way."""
    pending = [factor for node in nodes for factor in factors(node)]
    result: list[Node] = []
    for size in sizes:
        taken: list[Node] = []
        missing = size
        while missing > 1:
            if not pending:
                raise Unaligned
            head = find(pending.pop(0))
            if head.kind == PRODUCT:
                pending = factors(head) + pending
            elif missing % head.size == 0:
                taken.append(head)
                missing //= head.size
            elif head.size % missing == 0:
                major, minor = _split_major(head, missing)
                if made is not None:
                    made += [*leaves(major), *leaves(minor)]
                pending = factors(minor) + pending
                taken.append(major)
                missing = 1
            else:
                raise Unaligned
        result.append(product(taken) if size else Node(0))
    if pending:
        raise Unaligned
    return result


def cut(node: Node, at: int) -> tuple[Node, Node]:
    """The first `at` positions and the rest."""
    node = find(node)
    if at == 0:
        return Node(0), node
    if at == node.size:
        return node, Node(0)
    if node.kind == LEAF:
        parts = [Node(at), Node(node.size - at)]
        _refine(node, parts, CONCAT)
        return parts[0], parts[1]
    if node.kind == PRODUCT:
        major, *minors = factors(node)
        row = math.prod(minor.size for minor in minors)
        if at % row:
            raise Unaligned
        first, rest = cut(major, at // row)
        return product([first, *minors]), product([rest, *minors])
    before: list[Node] = []
    after: list[Node] = []
    start = 0
    for segment in segments(node):
        end = start + segment.size
        if end <= at:
            before.append(segment)
        elif start >= at:
            after.append(segment)
        else:
            first, rest = cut(segment, at - start)
            before.append(first)
            after.append(rest)
        start = end
    return concat(before), concat(after)


def unify(first: Node, second: Node, where: str = "this model") -> None:
    """Two dimensions are one and the same. Where their structures do not meet, both are frozen."""
    first, second = find(first), find(second)
    if first is second or (first.size <= 1 and second.size <= 1):
        return
    if first.size != second.size:
        raise Unaligned
    try:
        if first.kind == LEAF:
            _forward(first, second)
        elif second.kind == LEAF:
            _forward(second, first)
        elif first.kind == PRODUCT and second.kind == PRODUCT:
            _match(factors(first), factors(second), where, kind=PRODUCT)
        else:
            _match(segments(first), segments(second), where, kind=CONCAT)
    except Unaligned:
        freeze(first, f"units do not line up in {where}")
        freeze(second, f"units do not line up in {where}")


def _forward(leaf: Node, target: Node) -> None:
    """A leaf turns out to be `target`."""
    leaf.same = target
    if leaf.live:
        use(target)
    if leaf.reason is not None:
        freeze(target, leaf.reason)


def _match(left: list[Node], right: list[Node], where: str, *, kind: str) -> None:
    """Unify two lists of factors (or segments) part by part, splitting the larger where borders differ."""
    flatten, split = (factors, _split_major) if kind == PRODUCT else (segments, cut)
    while left or right:
        if not left or not right:
            raise Unaligned
        first, second = find(left.pop(0)), find(right.pop(0))
        # An earlier step of this loop may have refined a part that comes again.
        if first.kind == kind:
            left, right = flatten(first) + left, [second, *right]
        elif second.kind == kind:
            left, right = [first, *left], flatten(second) + right
        elif first.size == second.size:
            unify(first, second, where)
        elif first.size > second.size:
            head, rest = split(first, second.size)
            unify(head, second, where)
            left = flatten(rest) + left
        else:
            head, rest = split(second, first.size)
            unify(head, first, where)
            right = flatten(rest) + right
