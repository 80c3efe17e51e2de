"""Updates as they come from outside: odd weights, labels, dtypes, ties. Each works or is refused, and nothing half."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.core.aggregation import finalise, merge
from fedwidth.core.cohort import CohortSum
from fedwidth.core.index import Index
from fedwidth.core.submodel import extract
from fedwidth.core.updates import Update
from fedwidth.errors import SelectionError, StateError, UpdateError
from fedwidth.plan.axis import Fixed, Units
from hand_plans import mlp_plan, plan_of, random_state


@pytest.fixture
def setting():
    plan = mlp_plan()
    index = Index.of_units(plan, {"a": [0, 1], "b": [2, 4]})
    return plan, random_state(plan), index


@pytest.mark.parametrize("weights", [(3, 1), (np.float32(3), np.int64(1)), (Fraction(3), Fraction(1)), (3.0, 1.0)])
def test_a_weight_is_any_real_number(setting, weights):
    plan, state, index = setting
    low, high = ({n: torch.full_like(t, v) for n, t in extract(state, plan, index).items()} for v in (0.0, 8.0))
    new = merge(state, [(low, index, weights[0]), (high, index, weights[1])], plan)
    assert new["a.bias"][:2].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("weight", [True, "1", None, 1j, [1.0], 1e308, 5e-324, 10**400, math.inf])
def test_a_weight_that_is_none_is_refused(setting, weight):
    _, state, index = setting
    with pytest.raises(UpdateError, match="client 3 has weight .*; it must be a finite number above 0"):
        Update(state, index, weight=weight, client=3)


@pytest.mark.parametrize("units", [[0, 1], [0, 2, 4, 5, 7]])
def test_a_single_client_is_exact_in_double_precision_whatever_its_weight(units):
    # 1 / w * w is not 1 for one weight in seven or so.
    plan = plan_of({"w": (Units("g", 8), Units("h", 8))})
    index = Index.of_units(plan, {"g": units, "h": units})
    state, trained = random_state(plan, 1, torch.float64), random_state(plan, 2, torch.float64)
    sub = extract(trained, plan, index)
    for weight in range(1, 500):
        assert torch.equal(extract(merge(state, [(sub, index, weight)], plan), plan, index)["w"], sub["w"])


def test_sums_of_the_largest_weights_stay_finite(setting):
    plan, state, index = setting
    sub = extract(state, plan, index)
    new = merge(state, [(sub, index, 1e100)] * 3 + [(sub, index, 1e-100)], plan)
    assert all(torch.equal(new[n], state[n]) for n in state)


@pytest.mark.parametrize(
    "labels", [[1, 3], (3, 1), {1, 3}, np.array([1, 3]), torch.tensor([[1, 3]], dtype=torch.int32)]
)
def test_labels_are_any_whole_numbers(setting, labels):
    plan, state, index = setting
    sub = {n: t + 1 for n, t in extract(state, plan, index).items()}
    new = merge(state, [Update(sub, index, labels=labels)], plan)
    assert (new["c.bias"] != state["c.bias"]).tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    "labels", ["01", [0.5], torch.tensor([True, False, True, False]), torch.tensor([1.0]), 3, [None]]
)
def test_labels_that_are_none_are_refused(setting, labels):
    _, state, index = setting
    with pytest.raises(UpdateError, match="client 5 has labels that are not whole numbers"):
        Update(state, index, labels=labels, client=5)


def test_a_client_without_labels_moves_no_row_of_the_classifier(setting):
    plan, state, index = setting
    sub = {n: t + 1 for n, t in extract(state, plan, index).items()}
    new = merge(state, [Update(sub, index, labels=[])], plan)
    assert torch.equal(new["c.bias"], state["c.bias"])
    assert not torch.equal(new["b.bias"], state["b.bias"])


@pytest.mark.parametrize("change", [torch.Tensor.double, lambda t: t + 0j, torch.Tensor.long])
def test_another_dtype_is_refused_before_anything_is_added(setting, change):
    plan, state, index = setting
    sums = CohortSum(index)
    sums.add(Update(extract(state, plan, index), index))
    before = {n: t.clone() for n, t in sums.mean.items()}
    other = {n: t + 1 for n, t in extract(state, plan, index).items()}
    other["c.bias"] = change(other["c.bias"])  # the last tensor: the others would have been added by then
    said = r"what client 9 holds of 'c.bias' is averaged in .* and the rest in torch.float32 on cpu"
    with pytest.raises(StateError, match=said):
        sums.add(Update(other, index, client=9))
    assert sums.clients == 1
    assert set(sums.weight.values()) == {1.0}
    assert all(torch.equal(before[n], sums.mean[n]) for n in before)
    with pytest.raises(StateError, match="what a cohort holds of 'c.bias' is averaged in"):
        merge(state, [(other, index, 1.0)], plan)


def test_half_precision_may_be_sent_to_a_state_of_single_precision(setting):
    plan, state, index = setting
    sub = {n: t.bfloat16() for n, t in extract(state, plan, index).items()}
    new = merge(state, [(sub, index, 1.0), (extract(state, plan, index), index, 1.0)], plan)
    assert {t.dtype for t in new.values()} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.uint8, torch.int8])
@pytest.mark.parametrize("units", [[1, 2], [0, 2, 4, 6], [0, 1, 3, 5, 7]])
def test_small_dtypes_are_cut_and_put_back_exactly(dtype, units):
    plan = plan_of({"w": (Units("g", 8), Units("h", 6), Fixed(2, "kernel"))})
    state = {"w": (torch.randn(8, 6, 2, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)}
    index = Index.of_units(plan, {"g": units, "h": [0, 2, 5]})
    sub = extract(state, plan, index)
    bits = lambda t: t.view(torch.uint8)  # noqa: E731
    assert torch.equal(bits(sub["w"]), bits(state["w"])[units][:, [0, 2, 5]])
    new = merge(state, [(sub, index, 1.0), (sub, index, 2.0)], plan)
    assert new["w"].dtype == dtype
    assert torch.equal(bits(new["w"]), bits(state["w"]))


def test_whole_numbers_a_float_cannot_hold_are_kept_or_refused():
    plan = plan_of({"w": (Units("g", 4),)})
    state = {"w": torch.tensor([2**53 + 1, 7, -(2**60) - 1, 5])}
    index = Index.of_units(plan, {"g": [1, 3]})
    new = merge(state, [({"w": torch.tensor([8, 6])}, index, 1.0)], plan)
    assert new["w"].tolist() == [2**53 + 1, 8, -(2**60) - 1, 6]
    with pytest.raises(UpdateError, match=r"client 0 sent whole numbers in 'w' beyond 2\*\*53"):
        merge(state, [({"w": torch.tensor([2**53 + 1, 0])}, index, 1.0)], plan)


def test_nothing_of_autograd_is_carried_along(setting):
    plan, state, index = setting
    learnt = {n: t.clone().requires_grad_() for n, t in state.items()}
    sub = {n: t.requires_grad_() for n, t in extract(learnt, plan, index).items()}
    for found in (merge(learnt, [(sub, index, 1.0)], plan), merge(learnt, [], plan), extract(learnt, plan, index)):
        assert not any(t.requires_grad for t in found.values())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(7, 8), nn.Linear(8, 7)
        self.out.weight = self.words.weight

    def forward(self, tokens):
        return self.out(torch.relu(self.words(tokens)))


@pytest.mark.parametrize("name", ["heterofl", "fedbrb"])
def test_tied_tensors_may_come_once_or_twice_and_in_any_order(name):
    model = Tied()
    plan = fedwidth.trace(model, torch.zeros(2, 3, dtype=torch.long))
    assert plan.tied == {"out.weight": "words.weight"}
    method = fedwidth.method(name)
    index = method.select(plan, capacity=0.5)
    state = fedwidth.state_of(model)
    outcomes = []
    for names in (list(state), list(reversed(state)), [n for n in state if n != "out.weight"]):
        given = {n: state[n].clone() for n in names}
        sums = CohortSum(index)
        sums.add(Update({n: t + 1 for n, t in extract(given, plan, index).items()}, index))
        outcomes.append(method.aggregate(given, [sums], plan))
        assert list(outcomes[-1]) == names
    for new in outcomes:
        assert not torch.equal(new["words.weight"], state["words.weight"])
        assert all(torch.equal(new[n], outcomes[0][n]) for n in new)
    for new in outcomes[:2]:
        assert new["out.weight"] is new["words.weight"]


def test_tied_tensors_that_differ_are_refused():
    model = Tied()
    plan = fedwidth.trace(model, torch.zeros(2, 3, dtype=torch.long))
    index, state = Index.whole(plan), fedwidth.state_of(model)
    apart = {**state, "out.weight": state["out.weight"] + 1}
    message = "'words.weight' and 'out.weight' are one tensor of the model, but their values differ"
    with pytest.raises(StateError, match=message):
        extract(apart, plan, index)
    with pytest.raises(StateError, match=message):
        merge(state, [(apart, index, 1.0)], plan)
    assert extract({n: t.clone() for n, t in state.items()}, plan, index).keys() == state.keys()


def test_what_is_no_update_is_named(setting):
    plan, state, index = setting
    sub = extract(state, plan, index)
    for bad in ((sub, index), 3, (sub, index, 1.0, None), "abc"[:2]):
        with pytest.raises(UpdateError, match=r"update 0 is neither \(sub, index, weight\) nor an Update"):
            merge(state, [bad], plan)
    with pytest.raises(StateError, match="a state maps names to tensors; this is a NoneType"):
        merge(state, [(None, index, 1.0)], plan)
    with pytest.raises(UpdateError, match="client 0 sent 'a.weight' without values"):
        merge(state, [({n: t.to("meta") for n, t in sub.items()}, index, 1.0)], plan)
    with pytest.raises(UpdateError, match="expected an Update, not a tuple"):
        CohortSum(index).add((sub, index, 1.0))
    with pytest.raises(SelectionError, match="a sum needs the Index of its cohort"):
        CohortSum({"a": [0]})
    with pytest.raises(SelectionError, match="only sums of one index"):
        CohortSum(index).merge(None)
    with pytest.raises(UpdateError, match=r"expected a CohortSum, not a Update; fedwidth.merge takes updates"):
        finalise(state, [Update(sub, index)], plan)
    with pytest.raises(SelectionError, match="another plan"):
        finalise(state, [CohortSum(Index.whole(plan_of({"w": (Units("g", 4),)})))], plan)
