"""What becomes of adapters on the server, worked by hand.

Two clients train adapters of rank 1 on a layer of 2 x 2, W = 0 and scale 1:

    client 1   B = (1, 0)'   A = (1, 0)       B A = [1 0; 0 0]
    client 2   B = (0, 1)'   A = (0, 1)       B A = [0 0; 0 1]

The mean of products is diag(1/2, 1/2). The means of factors are (1/2, 1/2)' and (1/2, 1/2), whose product is 1/4 in
every place: off by [1/4 -1/4; -1/4 1/4], of length 1/2, where the mean is 1/sqrt(2) long. So the error is 1/sqrt(2).
"""

from __future__ import annotations

import math

import pytest
import torch
from adapter_models import base, filled, rank_plan
from torch import Tensor, nn

import fedwidth
from fedwidth.adapters.averages import AVERAGES
from fedwidth.adapters.measures import aggregation_error, effective_rank
from fedwidth.adapters.products import mean_product, product_of
from fedwidth.core.cohort import CohortSum
from fedwidth.methods import Closing
from fedwidth.plan import Plan

UP, DOWN, WEIGHT = "0.lora_B.default.weight", "0.lora_A.default.weight", "0.base_layer.weight"


def layer(rank: int, outside: str = "freeze") -> tuple[dict[str, Tensor], Plan]:
    """The state and the plan of a layer of 2 x 2 zeros with an adapter, and a layer after it."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)).double()
    nn.init.zeros_(model[0].weight)
    adapted = fedwidth.adapt(model, rank, ["0"], outside=outside)
    return fedwidth.state_of(adapted), rank_plan(adapted, torch.zeros(2, 2).double())


def trained(plan: Plan, units: list[int], up: list[list[float]], down: list[list[float]], weight: float = 1.0):
    """What one client trained: its units of the rank, columns of B and rows of A."""
    index = fedwidth.Index.of_units(plan, dict.fromkeys(plan.groups, units))  # at rank 1 there is nothing to choose
    total = CohortSum(index)
    found = {UP: torch.tensor(up).double(), DOWN: torch.tensor(down).double()}
    others = {n: torch.zeros(s).double() for n, s in index.shapes.items() if n not in found and n not in plan.untrained}
    total.add(fedwidth.Update({**others, **found}, index, weight))
    return total


def two_clients(plan: Plan):
    return [trained(plan, [0], [[1.0], [0.0]], [[1.0, 0.0]]), trained(plan, [0], [[0.0], [1.0]], [[0.0, 1.0]])]


def closed(name: str, state, sums, plan, **options) -> dict[str, Tensor]:
    method = fedwidth.method(name, **options)
    return method.finish(Closing(state, sums, plan, options=method.values, seed=1, round=2))


def test_fedit_averages_factors_and_is_off_by_their_covariance():
    state, plan = layer(1)
    sums = two_clients(plan)
    new = closed("fedit", state, sums, plan)
    assert new[UP].tolist() == [[0.5], [0.5]]
    assert new[DOWN].tolist() == [[0.5, 0.5]]
    assert aggregation_error(state, new, sums, plan) == pytest.approx(1 / math.sqrt(2))


def test_weights_of_clients_count():
    state, plan = layer(1)
    sums = [trained(plan, [0], [[1.0], [0.0]], [[1.0, 0.0]], 3.0), trained(plan, [0], [[0.0], [1.0]], [[0.0, 1.0]])]
    mean = mean_product(plan.adapters[0], state, sums)
    torch.testing.assert_close(mean.dense(), torch.tensor([[0.75, 0.0], [0.0, 0.25]]).double())


def test_ffalora_is_exact_because_a_is_the_same_for_all():
    state, plan = layer(1)
    state[DOWN] = torch.tensor([[1.0, 2.0]]).double()
    sums = [trained(plan, [0], [[1.0], [0.0]], [[1.0, 2.0]]), trained(plan, [0], [[0.0], [1.0]], [[1.0, 2.0]])]
    new = closed("ffalora", state, sums, plan)
    assert (new[UP] @ new[DOWN]).tolist() == [[0.5, 1.0], [0.5, 1.0]]
    assert aggregation_error(state, new, sums, plan) == pytest.approx(0, abs=1e-15)
    assert fedwidth.method("ffalora").local.rests(plan, 7) == {DOWN}


def test_rolora_trains_b_first_and_then_a():
    _, plan = layer(1)
    rests = fedwidth.method("rolora").local.rests
    assert [rests(plan, round) for round in range(3)] == [{DOWN}, {UP}, {DOWN}]
    state, plan = layer(1)
    sums = [trained(plan, [0], [[1.0], [2.0]], [[1.0, 0.0]]), trained(plan, [0], [[1.0], [2.0]], [[0.0, 1.0]])]
    new = closed("rolora", state, sums, plan)
    assert (new[UP] @ new[DOWN]).tolist() == [[0.5, 0.5], [1.0, 1.0]]
    assert aggregation_error(state, new, sums, plan) == pytest.approx(0, abs=1e-15)


def test_flexlora_decomposes_the_mean_of_products():
    """Client 1 of rank 2 trains diag(4, 1), client 2 of rank 1 trains diag(2, 0): the mean is diag(3, 1/2)."""
    state, plan = layer(2, "drop")
    eye = [[1.0, 0.0], [0.0, 1.0]]
    sums = [trained(plan, [0, 1], [[4.0, 0.0], [0.0, 1.0]], eye), trained(plan, [0], [[2.0], [0.0]], [[1.0, 0.0]])]
    new = closed("flexlora", state, sums, plan)
    torch.testing.assert_close(new[UP] @ new[DOWN], torch.tensor([[3.0, 0.0], [0.0, 0.5]]).double())
    torch.testing.assert_close(new[UP].abs(), torch.tensor([[3.0, 0.0], [0.0, 0.5]]).double())  # U S, largest first
    torch.testing.assert_close(new[DOWN].abs(), torch.eye(2).double())
    assert aggregation_error(state, new, sums, plan, "clients") == pytest.approx(0, abs=1e-12)


def test_flexlora_of_rank_one_keeps_the_larger_of_two():
    state, plan = layer(1, "drop")
    sums = [trained(plan, [0], [[4.0], [0.0]], [[1.0, 0.0]]), trained(plan, [0], [[0.0], [3.0]], [[0.0, 1.0]])]
    new = closed("flexlora", state, sums, plan)  # of diag(2, 3/2): 3/2 is lost, and the mean is 5/2 long
    torch.testing.assert_close(new[UP] @ new[DOWN], torch.tensor([[2.0, 0.0], [0.0, 0.0]]).double())
    assert aggregation_error(state, new, sums, plan, "clients") == pytest.approx(0.6)


def test_units_beyond_the_rank_of_the_mean_can_still_learn():
    state, plan = layer(2, "drop")
    state[DOWN] = torch.tensor([[5.0, 6.0], [7.0, 8.0]]).double()
    new = closed("flexlora", state, [trained(plan, [0], [[4.0], [0.0]], [[1.0, 0.0]])], plan)
    assert new[UP][:, 1].tolist() == [0.0, 0.0]
    assert new[DOWN][1].tolist() == [7.0, 8.0]


def test_flora_adds_the_mean_of_products_to_the_frozen_weight_and_begins_anew():
    state, plan = layer(2, "drop")
    state[WEIGHT] = torch.tensor([[10.0, 0.0], [0.0, 20.0]]).double()
    sums = [trained(plan, [0, 1], [[1.0, 0.0], [0.0, 1.0]], [[4.0, 0.0], [0.0, 1.0]])]
    sums += [trained(plan, [0], [[2.0], [0.0]], [[1.0, 0.0]])]
    new = closed("flora", state, sums, plan)
    assert new[WEIGHT].tolist() == [[13.0, 0.0], [0.0, 20.5]]
    assert new[UP].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    bound = 1 / math.sqrt(2)
    assert 0 < float(new[DOWN].abs().min()) <= float(new[DOWN].abs().max()) <= bound
    assert not torch.equal(new[DOWN], state[DOWN])
    assert torch.equal(closed("flora", state, sums, plan)[DOWN], new[DOWN])  # from seed and round alone
    assert aggregation_error(state, new, sums, plan, "clients") == pytest.approx(0, abs=1e-12)


def test_hetlora_fills_up_with_zeros_and_weighs_by_the_length_of_products():
    """Lengths 3 and 1, so the weights are 3/4 and 1/4; rank 1 is client 1's alone and shrinks with its weight."""
    state, plan = layer(2, "drop")
    sums = [trained(plan, [0, 1], [[0.0, 3.0], [0.0, 0.0]], [[2.0, 0.0], [0.0, 1.0]])]  # B A = [0 3; 0 0]
    sums += [trained(plan, [0], [[1.0], [0.0]], [[1.0, 0.0]])]
    new = closed("hetlora", state, sums, plan)
    assert new[UP].tolist() == [[0.25, 2.25], [0.0, 0.0]]
    assert new[DOWN].tolist() == [[1.75, 0.0], [0.0, 0.75]]


def test_the_residual_goes_into_the_frozen_weight():
    state, plan = layer(1)
    sums = two_clients(plan)
    new = AVERAGES["residual"](state, sums, plan, seed=0, round=0)
    assert (new[UP] @ new[DOWN]).tolist() == [[0.25, 0.25], [0.25, 0.25]]
    assert new[WEIGHT].tolist() == [[0.25, -0.25], [-0.25, 0.25]]
    assert aggregation_error(state, new, sums, plan) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("rule", [None, *AVERAGES])
def test_windows_that_do_not_overlap_are_averaged_exactly(rule):
    adapted = filled(fedwidth.adapt(base(), rank=4, alpha=2))
    plan, state = rank_plan(adapted, torch.zeros(2, 4)), fedwidth.state_of(adapted)
    draws = torch.Generator().manual_seed(1)
    sums = []
    for client in range(2):  # units 0, 1 and 2: one client of two and one of one; unit 3 is nobody's
        index = fedwidth.Index.of_units(plan, {name: [[0, 1], [2]][client] for name in plan.groups})
        sub = fedwidth.extract(state, plan, index)
        moved = {n: t + torch.randn(t.shape, generator=draws) for n, t in sub.items() if n not in plan.untrained}
        total = CohortSum(index)
        total.add(fedwidth.Update(moved, index, 1.0 + client))
        sums.append(total)
    average = AVERAGES.get(rule) if rule else None
    method = fedwidth.method("fedstack")
    new = method.finish(Closing(state, sums, plan, options=method.values, averaging=average, seed=1))
    assert aggregation_error(state, new, sums, plan) <= 1e-6
    for adapter in plan.adapters if rule is None else ():
        mean = product_of(adapter, new).dense()
        wanted = product_of(adapter, sums[0].mean).dense() + product_of(adapter, sums[1].mean).dense()
        last = state[adapter.up][:, 3:].double() @ state[adapter.down][3:].double()
        torch.testing.assert_close(mean, wanted + last)


def test_rules_are_refused_where_clients_hold_parts_of_layers():
    adapted = filled(fedwidth.adapt(base(), rank=4))
    plan, state = fedwidth.trace(adapted, torch.zeros(2, 4)), fedwidth.state_of(adapted)
    index = fedwidth.method("heterofl").select(plan, capacity=0.5)
    total = CohortSum(index)
    total.add(fedwidth.Update(fedwidth.extract(state, plan, index), index))
    with pytest.raises(fedwidth.FedwidthError, match="adds products of whole layers"):
        AVERAGES["svd"](state, [total], plan, seed=0, round=0)
    assert aggregation_error(state, state, [total], plan) is None


def test_rows_of_classes_have_weights_of_their_own():
    """A client without a class leaves its row of B alone; where nobody has it, the old row stays."""
    state, plan = layer(1)
    state[UP] = torch.tensor([[5.0], [7.0]]).double()
    sums = two_clients(plan)
    sums[0]._weight[UP] = torch.tensor([[1.0], [0.0]]).double()
    sums[1]._weight[UP] = torch.tensor([[3.0], [0.0]]).double()
    mean = mean_product(plan.adapters[0], state, sums).dense()
    # row 0: (1 * 1 * (1, 0) + 3 * 0 * (0, 1)) / 4; row 1: the old 7 times the mean of A, which weighs 1 and 1
    torch.testing.assert_close(mean, torch.tensor([[0.25, 0.0], [3.5, 3.5]]).double())


def test_the_effective_rank_counts_equal_singular_values():
    state, plan = layer(2)
    now = dict(state)
    now[UP], now[DOWN] = (torch.eye(2).double() for _ in range(2))
    assert effective_rank(state, state, plan) is None
    assert effective_rank(state, now, plan) == pytest.approx(2.0)
    now[UP] = torch.tensor([[1.0, 1.0], [1.0, 1.0]]).double()
    assert effective_rank(state, now, plan) == pytest.approx(1.0)
    moved = dict(state)
    moved[WEIGHT] = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()  # what was added to the frozen weight counts
    assert effective_rank(state, moved, plan) == pytest.approx(2.0)
