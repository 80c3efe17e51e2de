"""Widths of which only multiples can be kept: what an operator asks of its axes, and what that makes of the groups."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F

import zoo
from fedwidth.core.index import Index
from fedwidth.core.narrow import narrow
from fedwidth.errors import PlanError
from fedwidth.plan.multiples import find_multiples
from fedwidth.plan.node import Node, concat, product


def test_what_stays_of_a_product_counts_and_every_part_of_a_concatenation_must_do() -> None:
    units, others, odd = Node(8), Node(12), Node(6)
    groups = {units, others, odd}
    assert find_multiples([(units, 4)], groups) == {units: 4}
    assert find_multiples([(product([Node(2, "fixed"), units]), 4)], groups) == {units: 2}
    assert find_multiples([(product([Node(8, "fixed"), units]), 4)], groups) == {}
    assert find_multiples([(concat([units, others]), 4)], groups) == {units: 4, others: 4}
    assert find_multiples([(others, 4), (others, 6)], groups) == {others: 12}
    assert find_multiples([(odd, 4), (Node(8, "fixed"), 4)], groups) == {}


def test_counts_are_multiples_also_of_groups_that_move_together() -> None:
    _, plan, _ = zoo.traced("transformer-encoder")
    whole, part = plan.couplings[0].whole, plan.couplings[0].part
    assert (plan.groups[whole].size, plan.groups[part].size) == (32, 8)

    def with_multiples(**multiples: int) -> dict[float, int]:
        groups = {n: replace(g, multiple=multiples[n]) if n in multiples else g for n, g in plan.groups.items()}
        counts = {c: replace(plan, groups=groups).counts(c) for c in (1, 0.8, 0.4, 0.1)}
        assert all(found[whole] == 4 * found[part] for found in counts.values())
        return {c: found[whole] for c, found in counts.items()}

    # 32 = 4 heads of 8: 25.6, 12.8 and 3.2 units are six, three and one of each head; by twos six, two and two
    assert with_multiples() == {1: 32, 0.8: 24, 0.4: 12, 0.1: 4}
    assert with_multiples(**{part: 2}) == {1: 32, 0.8: 24, 0.4: 8, 0.1: 8}
    assert with_multiples(**{whole: 16}) == {1: 32, 0.8: 16, 0.4: 16, 0.1: 16}


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="since PyTorch 2.10")
def test_experts_of_one_grouped_product_run_at_every_capacity() -> None:
    model, plan, inputs = zoo.traced("expert-groups")
    assert {group.multiple for group in plan.groups.values()} == {4}  # rows of 16 bytes are four numbers
    for part in range(1, 17):
        counts = plan.counts(Fraction(part, 16))
        assert all(count % 4 == 0 for count in counts.values())
        small = narrow(model, plan, Index.of_units(plan, {name: range(count) for name, count in counts.items()}))
        zoo.run(small.train(), inputs).square().sum().backward()
        assert all(torch.isfinite(parameter.grad).all() for parameter in small.parameters())
    name = next(iter(plan.groups))
    assert f"{name}  " in str(plan).partition("widths of which multiples are kept")[2]
    with pytest.raises(PlanError, match=f"group '{name}' can keep multiples of 4 units, not 6"):
        narrow(model, plan, Index.of_units(plan, {n: range(6 if n == name else 8) for n in plan.groups}))
