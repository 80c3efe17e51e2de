"""Worked examples from the papers, each derived by hand."""

from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedwidth.core.cohort import sum_cohorts
from fedwidth.core.index import Index
from fedwidth.core.submodel import extract
from fedwidth.core.updates import Update
from fedwidth.errors import CapacityError, OptionError
from fedwidth.methods import Closing, Task, method, methods
from fedwidth.methods.fjord import local_widths
from fedwidth.plan.axis import Fixed, Units
from hand_plans import mlp_plan, plan_of, random_state

FIVE = plan_of({"layer": (Units("layer", 5),)})


def units(name, plan=FIVE, group="layer", **arguments):
    options = arguments.pop("options", {})
    return method(name, **options).select(plan, **arguments).units[group].tolist()


def letters(chosen):
    return {"abcde"[u] for u in chosen}


def test_fedrolex_figure_1():
    # The large client's window starts at a in round j; the small one's is two rounds ahead (starts at c).
    for step, (large, small) in enumerate([("abcd", "cde"), ("bcde", "dea"), ("cdea", "eab")]):
        assert letters(units("fedrolex", capacity=0.8, round=step)) == set(large)
        assert letters(units("fedrolex", capacity=0.6, round=step + 2)) == set(small)


def test_fedrolex_wraps_around_as_in_equation_4():
    # K = 5, beta = 0.6, n = 3. j = 3: {3, 4} and {0 … 3 + 3 - 1 - 5} = {0}.
    assert units("fedrolex", capacity=0.6, round=3) == [0, 3, 4]
    assert units("fedrolex", capacity=0.6, round=5) == units("fedrolex", capacity=0.6, round=0)


def test_fedrolex_backward_is_the_published_window():
    # {(i - j) mod K, i < n} with K = 5, n = 2, j = 1: {4, 0}.
    assert units("fedrolex", capacity=0.4, round=1, options={"direction": "backward"}) == [0, 4]


def test_fedrolex_overlap_of_appendix_a_4():
    # K = 10, beta = 0.5, r = 0.4: advance 1 + floor(0.5 * 0.6 * 10) = 4. r = 1: advance 1.
    ten = plan_of({"layer": (Units("layer", 10),)})
    select = dict(plan=ten, capacity=0.5, round=2)
    assert units("fedrolex", **select, options={"overlap": 0.4}) == [0, 1, 2, 8, 9]
    assert units("fedrolex", **select, options={"overlap": 1}) == units("fedrolex", **select)


def test_fedrolex_step_in_units_and_as_a_share_of_the_layer():
    ten = plan_of({"layer": (Units("layer", 10),)})
    assert units("fedrolex", plan=ten, capacity=0.2, round=2, options={"step": 3}) == [6, 7]
    assert units("fedrolex", plan=ten, capacity=0.2, round=2, options={"step": 0.2}) == [4, 5]
    staggered = {"step": 0.2, "stagger": True}
    assert units("fedrolex", plan=ten, capacity=0.2, round=2, client=1, clients=3, options=staggered) == [6, 7]


def test_fedrolex_step_as_a_share_of_the_window():
    # K = 128, n = 32: a step of 0.2 is 6.4 units, so the third and fourth window start at floor(12.8) and floor(19.2).
    wide = plan_of({"layer": (Units("layer", 128),)})
    thesis = {"step": 0.2, "step_of": "window"}
    starts = [units("fedrolex", plan=wide, capacity=0.25, round=j, options=thesis)[0] for j in range(4)]
    assert starts == [0, 6, 12, 19]
    # Of the layer it is 25.6 units, four times as far; 0.05 of the layer is as far as 0.2 of the window.
    for options, third in (({"step": 0.2}, 51), ({"step": 0.05}, 12), ({"step": 7, "step_of": "window"}, 14)):
        assert units("fedrolex", plan=wide, capacity=0.25, round=2, options=options)[0] == third


def test_fedrolex_of_the_thesis_is_fedcover_or_fedstack_by_what_its_step_is_a_share_of():
    # Ten clients at 1/2, K = 20, n = 10. 0.2 of the window and FedCover's K / 10 are 2 units; 0.5 of the layer and
    # FedStack's window are 10.
    twenty = plan_of({"layer": (Units("layer", 20),)})
    for place in range(10):
        at = dict(plan=twenty, capacity=0.5, round=3, client=place, clients=10)
        window = units("fedrolex", **at, options={"step": 0.2, "step_of": "window", "stagger": True})
        layer = units("fedrolex", **at, options={"step": 0.5, "stagger": True})
        assert window == units("fedcover", **at)
        assert layer == units("fedstack", **at)


def test_fedcover_spreads_the_windows_of_a_round():
    # K = 10, 5 clients: steps of 2, so windows of 2 units tile the layer.
    ten = plan_of({"layer": (Units("layer", 10),)})
    starts = [units("fedcover", plan=ten, capacity=0.2, client=c, clients=5) for c in range(5)]
    assert starts == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert units("fedcover", plan=ten, capacity=0.2, client=0, round=1, clients=5) == [2, 3]


def test_fedstack_stacks_window_on_window():
    ten = plan_of({"layer": (Units("layer", 10),)})
    rounds = [units("fedstack", plan=ten, capacity=0.3, round=j) for j in range(4)]
    assert rounds == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 1, 9]]


def test_fedminoccurances_avoids_what_the_last_round_held():
    plan = plan_of({"layer": (Units("layer", 100),)})
    index = Index.of_units(plan, {"layer": range(50)})
    last = [Task(client, 0.5, index, client) for client in range(9)]
    memory = method("fedminoccurances").remember(Closing({}, (), plan, tasks=last))
    assert memory["seen.layer"].tolist() == [9] * 50 + [0] * 50
    assert int(memory["clients"]) == 9
    held = torch.zeros(100)
    for seed in range(200):
        held[units("fedminoccurances", plan=plan, capacity=0.1, seed=seed, memory=memory)] += 1
    # Odds 1 : 10 between the halves; drawing 10 without replacement shifts it only a little.
    assert 6 < held[50:].sum() / held[:50].sum() < 14


def test_fedminoccurances_starts_like_federated_dropout():
    at = dict(capacity=0.4, round=0, client=3, clients=5, seed=7)
    assert units("fedminoccurances", **at) == units("feddropout", **at)


def test_fedbrb_figure_4():
    # A tensor of 16 blocks (4 x 4 units, block 1 x 1 for client B at 1/4); client A holds 1/2.
    plan = plan_of({"w": (Units("out", 4), Units("in", 4))})

    def blocks(capacity, round):
        rows, columns = method("fedbrb").select(plan, capacity=capacity, round=round)["w"]
        return [4 * r + c + 1 for r in rows.tolist() for c in columns.tolist()]

    assert blocks(1 / 4, 3) == [4]
    assert blocks(1 / 4, 4) == [5]
    assert blocks(1 / 2, 3) == [11, 12, 15, 16]
    assert blocks(1 / 2, 4) == [1, 2, 5, 6]


def test_fedbrb_broadcast_worked_by_hand():
    # One matrix of 2 x 2 blocks of 1 x 1, all 10. A client at 1/2 trains block 1 from 10 to 14: update 4, weight 0.25.
    plan = plan_of({"w": (Units("out", 2), Units("in", 2))})
    state = {"w": torch.full((2, 2), 10.0)}
    brb = method("fedbrb", broadcast=0.25)
    index = brb.select(plan, capacity=0.5, round=0)
    sums = sum_cohorts([({"w": torch.tensor([[14.0]])}, index, 1.0)], plan)
    assert brb.aggregate(state, sums, plan)["w"].tolist() == [[14.0, 11.0], [11.0, 11.0]]
    ablation = method("fedbrb", broadcast=0)
    assert ablation.aggregate(state, sums, plan)["w"].tolist() == [[14.0, 10.0], [10.0, 10.0]]


def test_fedbrb_broadcasts_of_two_sizes_are_averaged():
    # A vector of 4. The 1/4 client trains position 0 by +4; the 1/2 client positions 0, 1 by +8 and +16.
    # Position 0: mean(4, 8) = 6. Position 1: 16, plus 0.5 * 4. Positions 2, 3: 0.5 * mean(4, 8) and 0.5 * mean(4, 16).
    plan = plan_of({"w": (Units("g", 4),)})
    brb = method("fedbrb", broadcast=0.5)
    small, large = (brb.select(plan, capacity=c, round=0) for c in (0.25, 0.5))
    sums = sum_cohorts([({"w": torch.tensor([4.0])}, small, 1.0), ({"w": torch.tensor([8.0, 16.0])}, large, 1.0)], plan)
    assert brb.aggregate({"w": torch.zeros(4)}, sums, plan)["w"].tolist() == [6.0, 18.0, 3.0, 5.0]


def test_fedbrb_copies_of_blocks_worked_by_hand():
    # Block 1 of 2 x 2 goes from 10 to 14. The others move a quarter of the way there: 2 + 12/4, 4 + 10/4, 6 + 8/4.
    plan = plan_of({"w": (Units("out", 2), Units("in", 2))})
    brb = method("fedbrb", broadcast=0.25, copies="blocks")
    index = brb.select(plan, capacity=0.5, round=0)
    sums = sum_cohorts([({"w": torch.tensor([[14.0]])}, index, 1.0)], plan)
    state = {"w": torch.tensor([[10.0, 2.0], [4.0, 6.0]])}
    assert brb.aggregate(state, sums, plan)["w"].tolist() == [[14.0, 5.0], [6.5, 8.0]]


def test_fedbrb_copies_of_blocks_of_two_sizes_are_averaged():
    # Trained: position 0 to mean(4, 8) = 6, position 1 to 16. Half the way to what was trained elsewhere: position 1 to
    # the small client's 4, position 2 to mean(4, 8), position 3 to mean(4, 16); position 0 was trained by both.
    plan = plan_of({"w": (Units("g", 4),)})
    brb = method("fedbrb", broadcast=0.5, copies="blocks")
    small, large = (brb.select(plan, capacity=c, round=0) for c in (0.25, 0.5))
    sums = sum_cohorts([({"w": torch.tensor([4.0])}, small, 1.0), ({"w": torch.tensor([8.0, 16.0])}, large, 1.0)], plan)
    assert brb.aggregate({"w": torch.zeros(4)}, sums, plan)["w"].tolist() == [6.0, 10.0, 3.0, 5.0]


def test_fedbrb_copies_no_row_of_a_class_that_nobody_had():
    # A classifier of 2 classes and 2 inputs; the client has class 1 alone, so row 0 stays, also where it is copied to.
    plan = plan_of({"w": (Fixed(2, "model output"), Units("in", 2))}, label_axes=(("w", 0),))
    brb = method("fedbrb", broadcast=0.5, copies="blocks")
    index = brb.select(plan, capacity=0.5, round=0)
    update = Update({"w": torch.tensor([[9.0], [8.0]])}, index, 1.0, labels=torch.tensor([1]))
    new = brb.aggregate({"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}, sum_cohorts([update], plan), plan)
    assert new["w"].tolist() == [[1.0, 2.0], [8.0, 6.0]]


@pytest.mark.parametrize("copies", ["updates", "blocks"])
def test_fedbrb_leaves_frozen_blocks_alone(copies):
    plan = plan_of({"w": (Units("out", 2), Units("in", 2)), "frozen": (Units("out", 2), Units("in", 2))})
    brb = method("fedbrb", broadcast=0.5, copies=copies)
    index = brb.select(plan, capacity=0.5, round=0)
    state = random_state(plan)
    sub = extract(state, plan, index)
    new = brb.aggregate(state, sum_cohorts([(sub | {"w": sub["w"] + 1}, index, 1.0)], plan), plan)
    assert torch.equal(new["frozen"], state["frozen"])
    assert not torch.equal(new["w"][1], state["w"][1])


@pytest.mark.parametrize("copies", ["updates", "blocks"])
def test_fedbrb_takes_complex_numbers(copies):
    # From 2i to 4 + 2i in block 1; the other block gets half of 4, or goes half the way from 2i to 4 + 2i: 2 + 2i.
    plan = plan_of({"w": (Units("g", 2),)})
    brb = method("fedbrb", broadcast=0.5, copies=copies)
    index = brb.select(plan, capacity=0.5, round=0)
    sums = sum_cohorts([({"w": torch.tensor([4 + 2j])}, index, 1.0)], plan)
    assert brb.aggregate({"w": torch.tensor([2j, 2j])}, sums, plan)["w"].tolist() == [4 + 2j, 2 + 2j]


def test_fedbrb_vectors_roll_over_their_own_blocks_or_with_the_rows():
    plan = plan_of({"w": (Units("out", 4), Units("in", 4)), "b": (Units("out", 4),)})
    own = [method("fedbrb").select(plan, capacity=0.5, round=j)["b"][0].tolist() for j in range(4)]
    rows = [method("fedbrb", vectors="rows").select(plan, capacity=0.5, round=j) for j in range(4)]
    assert own == [[0, 1], [2, 3], [0, 1], [2, 3]]
    assert all(torch.equal(index["b"][0], index["w"][0]) for index in rows)


def test_fjord_draws_from_the_widths_it_can_hold():
    fjord = method("fjord", widths=[0.25, 0.5, 1.0])
    assert local_widths(0.5, fjord.values) == [0.25, 0.5]
    assert local_widths(0.1, fjord.values) == [0.1]
    assert units("fjord", capacity=0.6, round=9) == [0, 1, 2]


@given(st.integers(1, 300), st.fractions(Fraction(1, 100), 1), st.sampled_from(["floor", "ceil"]))
@example(2, Fraction(54053395982524057, 54053395983192800), "floor")
@settings(deadline=None)
def test_units_are_floor_or_ceil_of_capacity_times_size(size, capacity, rounding):
    plan = plan_of({"layer": (Units("layer", size),)})
    exact = capacity * size
    wanted = max(1, exact.__floor__() if rounding == "floor" else exact.__ceil__())
    assert plan.counts(capacity, rounding)["layer"] == wanted
    if capacity.denominator <= 10_000:  # closer to a whole number of units, a float cannot be told from its noise
        assert plan.counts(float(capacity), rounding)["layer"] == wanted


def test_bad_arguments_are_one_clear_sentence():
    plan = mlp_plan()
    for capacity in (0, -0.5, 1.1, float("nan"), "1/2", True):
        with pytest.raises(CapacityError, match="capacity must be a number above 0 and at most 1"):
            method("fedrolex").select(plan, capacity=capacity)
    with pytest.raises(OptionError, match="unknown method 'fedrolx' .did you mean 'fedrolex'"):
        method("fedrolx")
    with pytest.raises(OptionError, match="unknown option of fedrolex 'stepp' .did you mean 'step'"):
        method("fedrolex", stepp=1)
    with pytest.raises(OptionError, match="fedrolex option step must be a whole number of units from 1 on or a share"):
        method("fedrolex", step=0)
    for name, options in {
        "fedrolex": [{"step": 1.5}, {"overlap": 2}, {"direction": "up"}, {"rounding": "round"}, {"stagger": 1}],
        "fedbrb": [{"broadcast": -1}, {"vectors": "diagonal"}, {"copies": "all"}],
        "fjord": [{"widths": []}, {"widths": [2]}, {"distil": "yes"}],
    }.items():
        for option in options:
            with pytest.raises(OptionError, match=f"{name} option"):
                method(name, **option)
    with pytest.raises(OptionError, match="round must be a whole number from 0 on, not -1"):
        method("heterofl").select(plan, capacity=1, round=-1)
    with pytest.raises(OptionError, match="client 2 is not one of 2 clients"):
        method("heterofl").select(plan, capacity=1, client=2, clients=2)


def test_a_new_method_is_a_function_and_a_record():
    from fedwidth.methods import Method, per_group

    last = Method(
        name="last",
        title="Last",
        paper="-",
        equation="-",
        choose=per_group(lambda size, kept, at: torch.arange(size - kept, size)),
    ).with_options()
    index = last.select(FIVE, capacity=0.4)
    assert index["layer"][0].tolist() == [3, 4]


def test_clients_share_windows_and_nest_them_as_the_papers_say():
    shared = {name for name, each in methods().items() if each.shared(each.values)}
    assert {"fedavg", "heterofl", "fjord", "fedrolex", "fedbrb"} <= shared
    assert not shared & {"feddropout", "fedcover", "fedstack", "fedminoccurances", "fedecover"}
    nested = {name for name, each in methods().items() if each.nested(each.values)}
    assert {"heterofl", "fjord", "fedrolex"} <= nested
    assert not nested & {"feddropout", "fedcover", "fedstack", "fedbrb"}


def test_fixed_axes_are_never_sliced():
    plan = plan_of({"w": (Units("g", 4), Fixed(3, "input"))})
    sub = extract(random_state(plan), plan, method("heterofl").select(plan, capacity=0.5))
    assert sub["w"].shape == (2, 3)
