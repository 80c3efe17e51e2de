import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwidth.core.aggregation import finalise, merge
from fedwidth.core.cohort import CohortSum, sum_cohorts
from fedwidth.core.index import Index
from fedwidth.core.submodel import extract
from fedwidth.core.updates import Update, weigh
from fedwidth.errors import OptionError, SelectionError, StateError, UpdateError
from fedwidth.methods import method
from fedwidth.plan.axis import Units
from hand_plans import heads_plan, mlp_plan, plan_of, random_state


def test_equation_10_with_three_overlapping_clients_worked_by_hand():
    # Five units a…e of value 100. Client 1 holds abcd (p = 1), client 2 cde (p = 2), client 3 d (p = 5).
    plan = plan_of({"w": (Units("g", 6),)})
    state = {"w": torch.full((6,), 100.0)}
    updates = [
        ({"w": torch.tensor([1.0, 2.0, 3.0, 4.0])}, Index.of_units(plan, {"g": [0, 1, 2, 3]}), 1.0),
        ({"w": torch.tensor([30.0, 40.0, 50.0])}, Index.of_units(plan, {"g": [2, 3, 4]}), 2.0),
        ({"w": torch.tensor([400.0])}, Index.of_units(plan, {"g": [3]}), 5.0),
    ]
    # a, b: client 1 alone. c: (1*3 + 2*30)/3 = 21. d: (1*4 + 2*40 + 5*400)/8 = 260.5. e: client 2. f: nobody.
    expected = torch.tensor([1.0, 2.0, 21.0, 260.5, 50.0, 100.0])
    assert torch.allclose(merge(state, updates, plan)["w"], expected, rtol=1e-6)
    assert torch.equal(state["w"], torch.full((6,), 100.0))


def reference_merge(state, updates):
    """Eq. 10 by plain loops over clients and elements, in double precision."""
    top = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in state.items()}
    bottom = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in state.items()}
    for sub, index, weight in updates:
        for name, value in sub.items():
            grid = torch.meshgrid(*index[name], indexing="ij")
            top[name][grid] += weight * value.double()
            bottom[name][grid] += weight
    return {n: torch.where(bottom[n] > 0, top[n] / bottom[n].clamp(min=1e-300), t.double()) for n, t in state.items()}


NAMES = ["heterofl", "feddropout", "fedrolex", "fedcover", "fedstack", "fedminoccurances"]


@given(
    st.sampled_from(NAMES),
    st.lists(st.tuples(st.sampled_from([1, 0.6, 0.5, 0.25, 0.1]), st.floats(0.1, 10)), min_size=1, max_size=7),
    st.integers(0, 30),
    st.booleans(),
)
@settings(deadline=None, max_examples=80)
def test_merge_equals_plain_loops_and_untouched_elements_keep_their_bits(name, cohort, round, composite):
    plan = heads_plan() if composite else mlp_plan()
    state = random_state(plan)
    tasks = method(name).assign(plan, [(i, c) for i, (c, _) in enumerate(cohort)], round)
    updates, noise = [], torch.Generator().manual_seed(round)
    for task, (_, weight) in zip(tasks, cohort, strict=True):
        sub = {n: t + torch.randn(t.shape, generator=noise) for n, t in extract(state, plan, task.index).items()}
        updates.append((sub, task.index, weight))
    expected = reference_merge(state, updates)
    new = merge(state, updates, plan)
    assert all(
        torch.equal(a, b) for (a, b) in zip(reference_merge(state, updates).values(), expected.values(), strict=True)
    )
    for n, tensor in state.items():
        assert torch.allclose(new[n].double(), expected[n], atol=1e-5)
        held = torch.zeros(tensor.shape, dtype=torch.bool)
        for _, index, _ in updates:
            held[torch.meshgrid(*index[n], indexing="ij")] = True
        assert torch.equal(new[n][~held], tensor[~held])
    # Another arrival order gives the same in exact arithmetic, the same order the same bits.
    again = merge(state, updates, plan)
    assert all(torch.equal(new[n], again[n]) for n in new)
    random.Random(0).shuffle(updates)
    shuffled = merge(state, updates, plan)
    assert all(torch.allclose(new[n], shuffled[n], atol=1e-5) for n in new)


def test_halves_of_a_cohort_merge_to_the_whole():
    plan = mlp_plan()
    index = Index.of_units(plan, {"a": [0, 1], "b": [2]})
    subs = [extract(random_state(plan, seed), plan, index) for seed in range(4)]
    whole, left, right = CohortSum(index), CohortSum(index), CohortSum(index)
    for number, sub in enumerate(subs):
        update = Update(sub, index, weight=number + 1.0)
        whole.add(update)
        (left if number < 2 else right).add(update)
    left.merge(right)
    state = random_state(plan, 9)
    one, two = finalise(state, [whole], plan), finalise(state, [left], plan)
    assert all(torch.allclose(one[n], two[n], atol=1e-6) for n in one)
    assert left.clients == 4
    with pytest.raises(SelectionError, match="sums of one index"):
        left.merge(CohortSum(Index.whole(plan)))


def test_a_sum_does_not_alias_the_updates_it_was_given():
    plan = mlp_plan()
    index = Index.whole(plan)
    sub = extract(random_state(plan), plan, index)
    cohort = CohortSum(index)
    cohort.add(Update(sub, index))
    sub["a.bias"].fill_(math.nan)
    assert finalise(random_state(plan), [cohort], plan)["a.bias"].isfinite().all()


def test_classifier_rows_count_only_for_labels_the_client_has():
    # Client 0 has labels {0, 1}, client 1 has {1, 2}; nobody has 3. Every row is worth 1 or 3, before 7.
    plan = mlp_plan(classes=4)
    state = {name: torch.full_like(t, 7.0) for name, t in random_state(plan).items()}
    index = Index.of_units(plan, {"b": [1, 2, 5]})
    one, three = ({n: torch.full_like(t, v) for n, t in extract(state, plan, index).items()} for v in (1.0, 3.0))
    updates = [
        Update(one, index, labels=torch.tensor([0, 1])),
        Update(three, index, labels=torch.tensor([1, 2])),
    ]
    new = merge(state, updates, plan)
    assert new["c.bias"].tolist() == [1.0, 2.0, 3.0, 7.0]
    assert new["c.weight"][:, 1].tolist() == [1.0, 2.0, 3.0, 7.0]
    assert new["c.weight"][:, 0].tolist() == [7.0] * 4
    assert (new["b.bias"][[1, 2, 5]] == 2.0).all()
    with pytest.raises(UpdateError, match="a label outside 0 to 3"):
        merge(state, [Update(one, index, labels=torch.tensor([4]))], plan)


def test_weightings_of_appendix_a_3():
    plan = mlp_plan(first=8, second=6)
    index = Index.of_units(plan, {"a": [0, 1], "b": [0, 1, 2]})
    weights = {
        name: weigh(name, samples=50, index=index, updates=7)
        for name in ("equal", "samples", "model-size", "updates", "hybrid")
    }
    assert weights == {"equal": 1.0, "samples": 50.0, "model-size": 5.0, "updates": 7.0, "hybrid": 35.0}
    with pytest.raises(OptionError, match="weighting must be one of equal, samples"):
        weigh("size", samples=1, index=index, updates=1)


def test_memory_of_a_sum_does_not_grow_with_clients():
    plan = mlp_plan()
    index = Index.of_units(plan, {"a": [0, 3]})
    cohort = CohortSum(index)
    for seed in range(50):
        cohort.add(Update(extract(random_state(plan, seed), plan, index), index))
    assert sum(t.numel() for t in cohort.mean.values()) == sum(math.prod(s) for s in index.shapes.values())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_names_client_and_tensor_and_changes_nothing(value):
    plan = mlp_plan()
    state, index = random_state(plan), Index.whole(plan)
    good, bad = extract(state, plan, index), extract(state, plan, index)
    bad["b.weight"][2, 3] = value
    sums = sum_cohorts([Update(good, index, client=4)], plan)
    before = {n: t.clone() for n, t in sums[0].mean.items()}
    with pytest.raises(UpdateError, match="client 17 sent a value in 'b.weight' that is not finite"):
        sums[0].add(Update(bad, index, client=17))
    assert sums[0].clients == 1
    assert all(torch.equal(before[n], sums[0].mean[n]) for n in before)


def test_large_finite_values_are_not_mistaken_for_infinity():
    plan = plan_of({"w": (Units("g", 4),)})
    huge = torch.full((4,), 3e38)
    assert torch.equal(merge({"w": torch.zeros(4)}, [({"w": huge}, Index.whole(plan), 1.0)], plan)["w"], huge)


def test_updates_that_do_not_belong_are_refused():
    plan = mlp_plan()
    state = random_state(plan)
    index, other = Index.of_units(plan, {"a": [0, 1]}), Index.of_units(plan, {"a": [2, 3]})
    sub = extract(state, plan, index)
    with pytest.raises(SelectionError, match="client 0 sent a sub-model of another index"):
        merge(state, [(sub, other, 1.0)], plan)
    with pytest.raises(StateError, match=r"'a.weight' has shape \(2, 3\), but the index of client 0 expects \(8, 3\)"):
        merge(state, [(dict(sub), Index.whole(plan), 1.0)], plan)
    for weight in (0.0, -1.0, math.nan):
        with pytest.raises(UpdateError, match="must be a finite number above 0"):
            merge(state, [(sub, index, weight)], plan)
    with pytest.raises(StateError, match="lacks 'a.bias'"):
        merge(state, [({n: t for n, t in sub.items() if n != "a.bias"}, index, 1.0)], plan)


def test_no_update_at_all_keeps_every_bit():
    plan = mlp_plan()
    state = random_state(plan)
    new = merge(state, [], plan)
    assert all(torch.equal(new[n], state[n]) for n in state)
