"""The axis tree against plain index arithmetic."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwidth.plan.node import Node, Unaligned, concat, find, freeze, kept, leaves, product, use
from fedwidth.plan.restructure import cut, regroup, unify


def layout(node: Node, names: dict[Node, str]) -> list[tuple[tuple[str, int], ...]]:
    """For each position, which unit of which leaf it is."""
    node = find(node)
    if node.kind == "leaf":
        return [((names[node], unit),) for unit in range(node.size)]
    parts = [layout(part, names) for part in node.parts]
    if node.kind == "concat":
        return [place for part in parts for place in part]
    result: list[tuple[tuple[str, int], ...]] = [()]
    for part in parts:
        result = [before + after for before in result for after in part]
    return result


def named(*nodes: Node) -> dict[Node, str]:
    found = dict.fromkeys(leaf for node in nodes for leaf in leaves(node))
    return {leaf: f"leaf{number}" if leaf.size > 1 else "one" for number, leaf in enumerate(found)}


small = st.integers(2, 5)


@settings(deadline=None, max_examples=50)
@given(st.lists(small, min_size=1, max_size=3), st.data())
def test_regroup_keeps_every_position_where_it_was(sizes: list[int], data: st.DataObject) -> None:
    total = math.prod(sizes)
    first = data.draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
    nodes = [Node(size) for size in sizes]
    whole = product(nodes)
    try:
        parts = regroup([whole], [first, total // first])
    except Unaligned:
        return
    assert [find(part).size for part in parts] == [first, total // first]
    names = named(*nodes)
    assert layout(product(parts), names) == layout(whole, names)


@settings(deadline=None, max_examples=50)
@given(st.lists(small, min_size=1, max_size=4), st.data())
def test_a_cut_concatenated_again_is_the_same(sizes: list[int], data: st.DataObject) -> None:
    nodes = [Node(size) for size in sizes]
    whole = concat(nodes)
    at = data.draw(st.integers(0, sum(sizes)))
    before, after = cut(whole, at)
    names = named(whole)
    assert layout(before, names) == layout(whole, names)[:at]
    assert layout(after, names) == layout(whole, names)[at:]


@settings(deadline=None, max_examples=50)
@given(st.lists(small, min_size=1, max_size=4), st.lists(small, min_size=1, max_size=4))
def test_unified_concatenations_have_one_layout(first: list[int], second: list[int]) -> None:
    difference = sum(first) - sum(second)
    first, second = (first, [*second, difference]) if difference > 0 else ([*first, -difference], second)
    one, other = concat(map(Node, first)), concat(map(Node, second))
    unify(one, other)
    names = named(one, other)
    assert layout(one, names) == layout(other, names)


def test_a_leaf_unified_with_structure_takes_it_over() -> None:
    leaf, heads, size = Node(12), Node(3), Node(4)
    unify(leaf, product([heads, size]))
    assert list(leaves(leaf)) == [heads, size]
    assert kept(leaf, {size: 2}) == 6


def test_swapped_halves_are_the_same_units() -> None:
    first, second = Node(4), Node(4)
    unify(concat([first, second]), concat([second, first]))
    assert find(first) is find(second)


def test_structures_that_do_not_meet_are_frozen() -> None:
    one, other = product([Node(6), Node(4)]), product([Node(4), Node(6)])
    unify(one, other, "a test")
    assert {leaf.reason for leaf in leaves(concat([one, other]))} == {"units do not line up in a test"}


def test_reasons_and_use_follow_refinement_and_unification() -> None:
    whole = Node(6)
    use(whole)
    freeze(whole, "because")
    before, _ = cut(whole, 2)
    fresh = Node(2)
    unify(fresh, before)
    assert [(leaf.reason, leaf.live) for leaf in leaves(fresh)] == [("because", True)]


def test_sizes_that_differ_cannot_be_one() -> None:
    with pytest.raises(Unaligned):
        unify(Node(3), Node(4))
