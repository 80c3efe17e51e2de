"""Laws that every method keeps on every model; a method is any file in `methods/`, a model any of `contract_models`.

By default every method meets some of the models and every model some of the methods; `make test-slow` takes all pairs.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from contract_models import MODELS, SMALL, traced
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import (
    CAPACITIES,
    EXEMPT,
    INDEX_LAWS,
    Exemption,
    elements_nobody_trained_keep_their_bits,
    held_by_server,
    laws_of,
    narrows,
)

import fedwidth
import own_method
from fedwidth.core.cohort import sum_cohorts
from fedwidth.core.index import Index
from fedwidth.errors import FedwidthError
from fedwidth.methods import methods
from fedwidth.models import names
from hand_plans import mlp_plan, random_state

METHODS = sorted(methods())
SLICING = [name for name in METHODS if methods()[name].slices]
SHARED = [name for name, method in methods().items() if method.shared(method.values)]
NESTED = [name for name, method in methods().items() if method.nested(method.values)]
BELOW_CAPACITY = ["fedladder"]
"""Methods whose clients may hold less than they could."""
MODEL = "preresnet18"
"""Where one model has to do: this one has residual streams and many width groups."""


def some_pairs(ones, others, partners=2):
    """Pairs that give each of both at least so many partners, spread evenly.

    >>> sorted(some_pairs("abc", "wxyz", partners=1))
    [('a', 'w'), ('a', 'z'), ('b', 'x'), ('c', 'y')]
    """
    few, many = sorted((ones, others), key=len)
    found = {(few[(partners * n + k) % len(few)], each) for n, each in enumerate(many) for k in range(partners)}
    return found if few is ones else {(one, other) for other, one in found}


def cases():
    """Every (method, model, law); what is not in the representative set of pairs is slow."""
    chosen = some_pairs(METHODS, MODELS)
    for name, model in product(METHODS, MODELS):
        for law in laws_of(methods()[name]):
            marks = () if (name, model) in chosen else pytest.mark.slow
            yield pytest.param(name, model, law, marks=marks, id=f"{name}-{model}-{law.__name__}")


def hold(method, model, law, exemption=None):
    """The law holds, or, where the method is exempt from it, fails as announced and holds with the options named."""
    if exemption is None:
        law(method, model)
        return
    with pytest.raises((AssertionError, FedwidthError)):  # the method does otherwise, or cannot do what the law asks
        law(method, model)
    if exemption.options:
        law(method.with_options(**exemption.options), model)


@pytest.mark.parametrize(("name", "model", "law"), list(cases()))
def test_law(name, model, law):
    hold(methods()[name], model, law, EXEMPT.get((name, law)))


class TestTheContractItself:
    def test_everyone_has_at_least_two_partners(self):
        for ones, others in ((METHODS, MODELS), (MODELS, METHODS), (range(5), range(5)), (range(16), range(3))):
            pairs = some_pairs(ones, others)
            for side, everyone in enumerate((ones, others)):
                assert all(sum(pair[side] == each for pair in pairs) >= 2 for each in everyone)
        assert len(some_pairs(METHODS, MODELS)) < len(METHODS) * len(MODELS) / 5

    def test_every_file_of_the_folder_and_every_model_of_the_catalogue_is_in_it(self):
        assert {file.stem for file in Path(fedwidth.methods.__file__).parent.glob("[!_]*.py")} == set(METHODS)
        assert set(names()) <= set(MODELS)
        assert set(SMALL) <= set(names())
        assert {name for name, _ in EXEMPT} <= set(METHODS)

    def test_an_exemption_that_is_not_needed_fails(self):
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            hold(methods()["heterofl"], "mlp", elements_nobody_trained_keep_their_bits, Exemption("for no reason"))

    @pytest.mark.parametrize("law", INDEX_LAWS, ids=lambda law: law.__name__)
    def test_a_method_that_breaks_a_law_is_found_out(self, law):
        def close(closing):
            return {name: tensor + 1 for name, tensor in closing.average().items()}

        whole = replace(methods()["heterofl"], choose=lambda plan, counts, at: Index.whole(plan))
        broken = whole if law is INDEX_LAWS[0] else replace(methods()["heterofl"], close=close)
        with pytest.raises(AssertionError):
            law(broken, "mlp")

    def test_parts_that_are_no_slices_are_held_to_what_can_be_asked_of_them(self):
        (law,) = laws_of(own_method.FACTORS)
        law(own_method.FACTORS, "mlp")


@pytest.mark.parametrize("name", METHODS)
@given(
    capacity=st.sampled_from(CAPACITIES),
    round=st.integers(0, 5000),
    clients=st.integers(1, 20),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
@settings(deadline=None, max_examples=25)
def test_the_same_arguments_give_the_same_part(name, capacity, round, clients, seed, data):
    _, plan, _, state = traced(MODEL)
    client = data.draw(st.integers(0, clients - 1))
    arguments = {"capacity": capacity, "round": round, "client": client, "clients": clients, "seed": seed}
    held = held_by_server(methods()[name], plan, state)
    first = fedwidth.method(name).select(plan, **arguments, **held)
    torch.manual_seed(data.draw(st.integers(0, 9)))
    second = fedwidth.method(name).select(plan, **arguments, **held)
    assert first.key == second.key
    if methods()[name].slices:
        assert all(torch.equal(a, b) for n in first for a, b in zip(first[n], second[n], strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_clients_of_one_capacity_hold_the_same_part_where_a_method_says_so_and_only_there(name):
    _, plan, _, state = traced(MODEL)
    held = held_by_server(methods()[name], plan, state)
    method = replace(fedwidth.method(name), enrolled=(1.0, 0.5, 0.25, 0.125))
    tasks = method.assign(plan, [(c, 0.25) for c in range(4)], round=9, seed=3, **held)
    parts = {task.part.key for task in tasks}
    assert (len(parts) == 1) == (name in SHARED)
    if name in SHARED:  # asked one by one, clients are told the same
        ask = {"capacity": 0.25, "round": 9, "clients": 4, "seed": 3, **held}
        assert {fedwidth.method(name).select(plan, client=c, **ask).key for c in range(4)} == parts


@pytest.mark.parametrize("name", NESTED)
def test_narrower_sub_models_lie_inside_wider_ones_where_a_method_says_so(name):
    _, plan, _, state = traced(MODEL)
    for round in (0, 5, 63, 200, 300):
        narrow, wide = (
            fedwidth.method(name).select(plan, capacity=c, round=round, seed=3, state=state) for c in (0.25, 0.5)
        )
        for tensor in plan.shapes:
            for inner, outer in zip(narrow[tensor], wide[tensor], strict=True):
                assert set(inner.tolist()) <= set(outer.tolist())


@given(
    name=st.sampled_from([name for name in SLICING if not methods()[name].public]),
    sizes=st.tuples(st.integers(2, 40), st.integers(2, 40)),
    cohort=st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=6),
    round=st.integers(0, 10**6),
    rounding=st.sampled_from(["floor", "ceil"]),
    seed=st.integers(0, 2**40),
)
@settings(deadline=None, max_examples=120)
def test_laws_over_random_sizes_capacities_rounds_and_cohorts(name, sizes, cohort, round, rounding, seed):
    plan, narrow = mlp_plan(first=sizes[0], second=sizes[1]), narrows(methods()[name])
    chosen = fedwidth.method(name, **({"rounding": rounding} if narrow else {}))
    state, everyone = random_state(plan, seed % 1000), list(enumerate(cohort))
    tasks = chosen.assign(plan, everyone, round, seed=seed, state=state)
    held = {n: torch.zeros(t.shape, dtype=torch.bool) for n, t in state.items()}
    updates = []
    for task, capacity in zip(tasks, cohort, strict=True):
        known = dict(client=task.place, clients=len(cohort), seed=seed, state=state, cohort=everyone)
        assert task.index == chosen.select(plan, capacity=capacity, round=round, **known)
        allowed = plan.counts(capacity if narrow else 1.0, rounding)
        assert task.index.counts == allowed or (
            name in BELOW_CAPACITY and all(task.index.counts[group] <= number for group, number in allowed.items())
        )
        for n, dims in task.index.items():
            for kept, size in zip(dims, state[n].shape, strict=True):
                assert 0 <= int(kept[0]) <= int(kept[-1]) < size
                assert bool((kept[1:] > kept[:-1]).all())
            held[n][torch.meshgrid(*dims, indexing="ij")] = True
        updates.append((fedwidth.extract(state, plan, task.index), task.index, 0.5 + task.place))
    same = chosen.aggregate(state, sum_cohorts(updates, plan), plan)
    assert all(torch.equal(same[n], state[n]) for n in state)
    if (name, elements_nobody_trained_keep_their_bits) not in EXEMPT:
        moved = [({n: t + 1 for n, t in sub.items()}, index, weight) for sub, index, weight in updates]
        new = chosen.aggregate(state, sum_cohorts(moved, plan), plan)
        for n, tensor in state.items():
            assert torch.equal(new[n][~held[n]], tensor[~held[n]])
            assert torch.allclose(new[n][held[n]], tensor[held[n]] + 1, atol=1e-5)
