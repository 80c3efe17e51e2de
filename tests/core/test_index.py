"""The index as a value: equality, hashing, copies; units and states that are no such thing."""

import copy
import pickle

import numpy as np
import pytest
import torch

import fedwidth
from fedwidth.core.index import Index
from fedwidth.core.submodel import extract, state_of
from fedwidth.errors import CapacityError, PlanError, SelectionError, StateError
from hand_plans import heads_plan, mlp_plan, random_state


def test_indexes_are_equal_when_plan_and_units_are():
    plan = mlp_plan()
    one, two, other = (Index.of_units(plan, {"a": units}) for units in ([0, 1], [1, 0], [1, 2]))
    assert one == two
    assert hash(one) == hash(two)
    assert one != other
    assert one in [other, two]
    assert len({one, two, other}) == 2
    assert one != {"a": [0, 1]}
    assert one == Index.of_units(mlp_plan(), {"a": [0, 1]})  # another plan of the same model
    assert Index.whole(plan) != Index.whole(mlp_plan(classes=5))


def test_equal_units_of_plans_that_cut_differently_are_not_equal():
    model = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    net = torch.nn.ModuleDict({"up": torch.nn.Linear(3, 16), "attend": model, "out": torch.nn.Linear(16, 2)})

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            x = self.net["up"](x)
            return self.net["out"](self.net["attend"](x, x, x)[0])

    inputs = torch.randn(2, 5, 3)
    within, whole = (fedwidth.trace(Net(), inputs, heads=heads) for heads in ("within", "whole"))
    assert within.shapes == whole.shapes
    index = fedwidth.method("heterofl").select(within, capacity=0.5)
    with pytest.raises(SelectionError, match="the index was made for another plan"):
        extract(state_of(Net()), whole, index)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_of_plan_index_and_sub_model_work_with_the_originals(again):
    plan = heads_plan()
    index = Index.of_units(plan, {"out": [1, 4], "head": [0, 2, 3]})
    state = random_state(plan)
    assert again(index) == index
    sub = again(extract(state, again(plan), index))
    new = fedwidth.merge(state, [(sub, again(index), 1.0)], plan)
    assert all(torch.equal(new[n], state[n]) for n in state)


def test_a_block_index_that_holds_everything_is_the_whole():
    plan = mlp_plan()
    assert fedwidth.method("fedbrb").select(plan, capacity=1, round=5) == Index.whole(plan)
    assert Index.whole(plan).is_whole
    assert not fedwidth.method("fedbrb").select(plan, capacity=0.5).is_whole


@pytest.mark.parametrize(
    "units", [[1, 3], (3, 1), {1, 3}, np.array([1, 3]), torch.tensor([1, 3], dtype=torch.uint8), iter([1, 3])]
)
def test_units_are_any_whole_numbers(units):
    assert Index.of_units(mlp_plan(), {"a": units})["a.bias"][0].tolist() == [1, 3]


@pytest.mark.parametrize(
    "units",
    [
        [1.5, 2.2],
        [True, False],
        torch.tensor([True] * 8),
        np.array([0.5]),
        torch.tensor([1.0]),
        "01",
        None,
        3,
        [10**30],
    ],
)
def test_units_that_would_be_cut_or_read_as_something_else_are_refused(units):
    with pytest.raises(SelectionError, match="units of group 'a' must be whole numbers"):
        Index.of_units(mlp_plan(), {"a": units})


def test_units_come_by_group_of_a_plan():
    plan = mlp_plan()
    for units in (None, [0, 1], 3):
        with pytest.raises(SelectionError, match="expected units by group"):
            Index.of_units(plan, units)
    with pytest.raises(PlanError, match="expected a plan"):
        Index.of_units(None, {})
    with pytest.raises(CapacityError, match="keeps no unit"):
        Index.of_units(plan, {"a": torch.tensor([])})


def test_states_of_other_things_are_refused():
    plan = mlp_plan()
    state, index = random_state(plan), Index.whole(mlp_plan())
    for bad, kind in (
        ([0.0] * 8, "a list"),
        (np.zeros(8), "a ndarray"),
        (None, "a NoneType"),
        (state["a.bias"].to_sparse(), "one of layout torch.sparse_coo"),
    ):
        with pytest.raises(StateError, match=f"'a.bias' must be a dense tensor, not {kind}"):
            extract({**state, "a.bias": bad}, plan, index)
    with pytest.raises(StateError, match=r"holds 'module.a.weight', which the plan does not know"):
        extract({f"module.{name}": t for name, t in state.items()}, plan, index)
    with pytest.raises(StateError, match="a state maps names to tensors; this is a Linear"):
        extract(torch.nn.Linear(2, 2), plan, index)
    with pytest.raises(PlanError, match="expected a plan"):
        extract(state, None, index)


def test_layout_and_memory_of_the_state_do_not_matter():
    plan = mlp_plan()
    state = random_state(plan)
    index = Index.of_units(plan, {"a": [1, 5], "b": [0, 3, 4]})
    turned = {n: t.t().contiguous().t() if t.dim() == 2 else t for n, t in state.items()}
    strided = {n: torch.stack([t, t], -1)[..., 0] for n, t in state.items()}
    expanded = {**state, "b.weight": torch.ones(1, 1).expand(6, 8)}
    for other in (turned, strided):
        sub = extract(other, plan, index)
        assert all(torch.equal(sub[n], extract(state, plan, index)[n]) and sub[n].is_contiguous() for n in sub)
        new = fedwidth.merge(other, [({n: t + 1 for n, t in sub.items()}, index, 1.0)], plan)
        assert all(torch.equal(extract(new, plan, index)[n], sub[n] + 1) for n in sub)
    new = fedwidth.merge(expanded, [({n: t + 1 for n, t in extract(expanded, plan, index).items()}, index, 1.0)], plan)
    assert int((new["b.weight"] == 2).sum()) == 2 * 3
    assert torch.equal(expanded["b.weight"], torch.ones(6, 8))


def test_scalars_and_empty_tensors_go_through():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.out = torch.nn.Linear(3, 8), torch.nn.Linear(8, 2)
            self.gain = torch.nn.Parameter(torch.tensor(2.0))
            self.nothing = torch.nn.Parameter(torch.zeros(0, 8))
            self.register_buffer("steps", torch.tensor(5))

        def forward(self, x):
            return self.out(self.up(x) * self.gain) + self.nothing.sum()

    model = Odd()
    plan = fedwidth.trace(model, torch.randn(2, 3))
    index = fedwidth.method("fedrolex").select(plan, capacity=0.5, round=6)
    sub = extract(state_of(model), plan, index)
    assert sub["gain"].shape == sub["steps"].shape == ()
    assert sub["nothing"].shape[0] == 0
    new = fedwidth.merge(state_of(model), [({n: t + 1 for n, t in sub.items()}, index, 1.0)], plan)
    assert (new["gain"].item(), new["steps"].item()) == (3.0, 6)
