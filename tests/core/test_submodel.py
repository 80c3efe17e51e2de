"""Sub-models cut out and put back."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwidth.core.aggregation import merge
from fedwidth.core.index import Index
from fedwidth.core.submodel import extract, with_ties
from fedwidth.errors import CapacityError, PlanError, SelectionError, StateError
from hand_plans import heads_plan, mlp_plan, random_state

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.int64, torch.int32]


@st.composite
def indexes(draw, plan):
    units = {}
    for name, group in plan.groups.items():
        units[name] = draw(st.lists(st.integers(0, group.size - 1), min_size=1, unique=True))
    return Index.of_units(plan, units)


def test_extract_takes_the_crossing_of_kept_positions():
    plan = mlp_plan()
    state = random_state(plan)
    index = Index.of_units(plan, {"a": [1, 4, 6], "b": [0, 5]})
    sub = extract(state, plan, index)
    assert torch.equal(sub["b.weight"], state["b.weight"][[0, 5]][:, [1, 4, 6]])
    assert torch.equal(sub["a.weight"], state["a.weight"][[1, 4, 6]])
    assert torch.equal(sub["c.weight"], state["c.weight"][:, [0, 5]])
    assert torch.equal(sub["c.bias"], state["c.bias"])


def test_extract_shares_no_memory_with_the_state():
    plan = mlp_plan()
    state = random_state(plan)
    for tensor in extract(state, plan, Index.whole(plan)).values():
        tensor.zero_()
    assert all(torch.equal(state[name], tensor) for name, tensor in random_state(plan).items())


def test_tied_names_take_the_tensor_they_are_tied_to():
    plan = replace(mlp_plan(), tied={"b.bias": "a.bias"})
    state = random_state(plan)
    tied = with_ties(state, plan)
    assert tied["b.bias"] is state["a.bias"]
    assert all(tied[name] is state[name] for name in state if name != "b.bias")
    del state["b.bias"]
    assert "b.bias" not in with_ties(state, plan)


@given(st.data(), st.sampled_from(DTYPES), st.floats(0.01, 1e4))
@settings(deadline=None, max_examples=60)
def test_extract_and_merge_are_an_inverse_pair_in_every_dtype(data, dtype, weight):
    plan = data.draw(st.sampled_from([mlp_plan(), heads_plan()]))
    index = data.draw(indexes(plan))
    state = {name: (t * 7).to(dtype) for name, t in random_state(plan).items()}
    sub = extract(state, plan, index)
    back = merge(state, [(sub, index, weight), (sub, index, 3.0)], plan)
    assert all(torch.equal(back[name], state[name]) and back[name].dtype == dtype for name in state)
    trained = {name: (t * 3 + 1).to(dtype) for name, t in sub.items()}
    merged = merge(state, [(trained, index, weight)], plan)
    again = extract(merged, plan, index)
    assert all(torch.equal(again[name], trained[name]) for name in trained)


def test_two_indexes_have_one_key_exactly_when_they_hold_the_same_positions():
    plan = mlp_plan()
    assert Index.of_units(plan, {"a": [2, 0]}).key == Index.of_units(plan, {"a": torch.tensor([0, 2])}).key
    assert Index.of_units(plan, {"a": [0, 2]}).key != Index.of_units(plan, {"a": [0, 3]}).key


def test_bad_units_and_states_are_refused_with_one_sentence():
    plan, other = mlp_plan(), heads_plan()
    state = random_state(plan)
    with pytest.raises(CapacityError, match="group 'a' keeps no unit; at least one of its 8 must stay"):
        Index.of_units(plan, {"a": []})
    with pytest.raises(PlanError, match="units 0 to 7, not 0 to 8"):
        Index.of_units(plan, {"a": [0, 8]})
    with pytest.raises(PlanError, match="a unit twice"):
        Index.of_units(plan, {"a": [1, 1]})
    with pytest.raises(SelectionError, match="no width group 'z'; it has: a, b"):
        Index.of_units(plan, {"z": [1]})
    with pytest.raises(SelectionError, match="another plan"):
        extract(state, plan, Index.whole(other))
    with pytest.raises(StateError, match=r"lacks 'c.bias' \(4,\)"):
        extract({k: v for k, v in state.items() if k != "c.bias"}, plan, Index.whole(plan))
    with pytest.raises(StateError, match="holds 'extra', which the plan does not know"):
        extract({**state, "extra": torch.zeros(1)}, plan, Index.whole(plan))
    with pytest.raises(StateError, match=r"'a.bias' has shape \(3,\), but the plan expects \(8,\)"):
        extract({**state, "a.bias": torch.zeros(3)}, plan, Index.whole(plan))
