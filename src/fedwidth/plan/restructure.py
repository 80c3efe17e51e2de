"""What operators say about dimensions: two are the same, or one is to be read in another way.

`unify` says that two dimensions are the same, `regroup` reads dimensions laid out row by row in other sizes, as a view
does, and `cut` divides one in two, as a split does. Leaves are refined where the structure demands it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from fedwidth.plan.node import (
    CONCAT,
    LEAF,
    PRODUCT,
    Node,
    Unaligned,
    concat,
    factors,
    find,
    freeze,
    is_fixed,
    leaves,
    product,
    segments,
    use,
)

MAX_ROWS = 8
"""Into how many rows a concatenation is cut where its segments are no whole rows."""


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
    parts = segments(node)
    if any(part.size % minor_size for part in parts):
        return _rows(node, size, minor_size)
    pairs = [regroup([part], [part.size // minor_size, minor_size]) for part in parts]
    for _, minor in pairs[1:]:
        unify(pairs[0][1], minor)
    return concat(major for major, _ in pairs), pairs[0][1]


def _rows(node: Node, count: int, size: int) -> tuple[Node, Node]:
    """A concatenation as rows that are the same units, though each may be made of several segments."""
    if count > MAX_ROWS:
        raise Unaligned
    first, rest = cut(node, size)
    for _ in range(count - 1):
        row, rest = cut(rest, size)
        unify(first, row)
    return Node(count, "rows laid one after the other"), first


def regroup(nodes: Iterable[Node], sizes: Iterable[int], made: list[Node] | None = None) -> list[Node]:
    """Read row-major `nodes` as dimensions of other sizes, as a view does; `made` collects leaves split on the way."""
    found, wanted = [factor for node in nodes for factor in factors(node)], list(sizes)
    try:
        return _regroup(found, wanted, made)
    except Unaligned:
        if not any(map(is_fixed, found)):
            raise
    # Positions that always stay may be read in any way, whatever structure was found in them.
    return _regroup(_merge_fixed(found), wanted, made)


def _merge_fixed(nodes: Iterable[Node]) -> list[Node]:
    """The nodes, with neighbours none of which may be sliced as one."""
    merged: list[Node] = []
    for node in nodes:
        if is_fixed(node):
            reason = next(leaf.reason for leaf in leaves(node))
            before = merged.pop().size if merged and merged[-1].reason is not None else 1
            merged.append(Node(before * find(node).size, reason))
        else:
            merged.append(node)
    return merged


def _regroup(pending: list[Node], sizes: list[int], made: list[Node] | None) -> list[Node]:
    pending = list(pending)
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
        rows, into = divmod(at, math.prod(minor.size for minor in minors))
        first, rest = cut(major, rows)
        if not into:
            return product([first, *minors]), product([rest, *minors])
        # Inside a row, which becomes one of its own: two halves of an odd number of rows, say.
        _, rest = cut(rest, 1)
        head, tail = cut(product(minors), into)
        return concat([product([first, *minors]), head]), concat([tail, product([rest, *minors])])
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
