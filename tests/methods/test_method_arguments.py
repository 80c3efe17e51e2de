"""Arguments of methods as users give them: numpy's numbers, wrong kinds, histories and plans of something else."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from fedwidth.core.index import Index
from fedwidth.errors import CapacityError, ClientError, OptionError, PlanError, SelectionError
from fedwidth.experiment import Experiment
from fedwidth.methods import Closing, Local, Method, Option, Task, method, methods, per_group, under
from hand_plans import heads_plan, mlp_plan, random_state
from small_runs import same, small

METHODS = sorted(name for name, method in methods().items() if method.slices)


@pytest.mark.parametrize("name", METHODS)
def test_numpy_integers_are_whole_numbers(name):
    plan = mlp_plan()
    state = random_state(plan)
    plain = method(name).select(plan, capacity=0.5, round=3, client=1, clients=4, seed=7, state=state)
    numpys = dict(round=np.int64(3), client=np.uint8(1), clients=np.int32(4), seed=np.int64(7))
    assert method(name).select(plan, capacity=np.float64(0.5), **numpys, state=state) == plain
    (numpys_task,), (plain_task,) = (
        method(name).assign(plan, [(0, 0.5)], round, state=state) for round in (np.int64(3), 3)
    )
    assert numpys_task.index == plain_task.index


@pytest.mark.parametrize("argument", ["round", "client", "clients", "seed"])
@pytest.mark.parametrize("value", [-1, 1.0, 1.5, math.nan, "1", None, True, []])
def test_what_is_no_whole_number_is_refused(argument, value):
    arguments = {"capacity": 0.5, argument: value}
    with pytest.raises(OptionError, match=f"^{argument} must be a whole number from [01] on, not "):
        method("fedcover").select(mlp_plan(), **arguments)


@pytest.mark.parametrize("name", METHODS)
def test_rounds_seeds_and_clients_have_no_upper_end(name):
    plan = mlp_plan()
    large = dict(round=10**40, client=10**30, clients=10**31, seed=10**50)
    index = method(name).select(plan, capacity=0.5, **large, state=random_state(plan))
    assert index.counts == plan.counts(0.5 if "rounding" in methods()[name].options else 1.0)


@pytest.mark.parametrize("capacity", [0, -0.5, 1.5, math.nan, math.inf, "0.5", None, True, [0.5], np.float32(0.3), 1j])
def test_what_is_no_capacity_is_refused(capacity):
    plan = mlp_plan()
    for ask in (
        lambda: plan.counts(capacity),
        lambda: method("fedrolex").select(plan, capacity=capacity),
        lambda: method("fedrolex").assign(plan, [(0, capacity)], 0),
    ):
        with pytest.raises(CapacityError, match="capacity must be a number above 0 and at most 1"):
            ask()


def test_a_capacity_leaves_a_unit_however_small():
    assert set(mlp_plan().counts(1e-300).values()) == {1}
    assert set(mlp_plan().counts(Fraction(1, 10**30), "ceil").values()) == {1}


def test_a_cohort_is_pairs_of_client_and_capacity():
    plan, rolex = mlp_plan(), method("fedrolex")
    assert rolex.assign(plan, [], 0) == []
    assert [task.client for task in rolex.assign(plan, iter([(4, 0.5), (4, 0.25)]), 0)] == [4, 4]
    for cohort in (None, 3, [0, 1], [(0,)], [(0, 0.5, 1)], {0: 0.5}):
        with pytest.raises(OptionError, match=r"the cohort must be a list of \(client, capacity\) pairs"):
            rolex.assign(plan, cohort, 0)


@pytest.mark.parametrize("name", [None, 3, [], {}, "", "FedRolex"])
def test_an_unknown_method_lists_known_ones(name):
    with pytest.raises(OptionError, match=r"unknown method .*allowed: cocofl, dsfl, fed\w+, "):
        method(name)


def test_an_option_is_known_by_any_name():
    for name in ("name", "self", "stepp"):
        with pytest.raises(OptionError, match=f"unknown option of fedrolex '{name}'"):
            method("fedrolex", **{name: 1})


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("fedrolex", "rounding", np.array(["floor", "ceil"])),
        ("fedrolex", "direction", ["forward"]),
        ("fedrolex", "step", math.nan),
        ("fedrolex", "step", 1.0),
        ("fedrolex", "overlap", math.nan),
        ("fedrolex", "stagger", 1),
        ("fedbrb", "broadcast", True),
        ("fedbrb", "broadcast", math.nan),
        ("fedbrb", "vectors", None),
        ("fjord", "widths", [0.5, math.nan]),
        ("fjord", "widths", 0.5),
    ],
)
def test_an_option_of_the_wrong_kind_says_what_is_allowed(name, option, value):
    with pytest.raises(OptionError, match=f"{name} option {option} must be .*, not "):
        method(name, **{option: value})


def test_options_may_be_numbers_of_numpy():
    assert method("fedrolex", step=np.int64(2)).values["step"] == 2
    assert type(method("fedrolex", step=np.int64(2)).values["step"]) is int
    assert method("fedbrb", broadcast=np.float32(0.5)).values["broadcast"] == 0.5


def test_a_model_is_no_plan():
    with pytest.raises(PlanError, match=r"expected a plan from fedwidth.trace, not a Linear"):
        method("fedrolex").select(torch.nn.Linear(2, 2), capacity=0.5)
    with pytest.raises(PlanError, match="expected a plan"):
        method("fedrolex").assign(None, [(0, 0.5)], 0)


def test_a_memory_of_something_else_is_refused():
    plan, other, method_ = mlp_plan(), heads_plan(), method("fedminoccurances")
    with pytest.raises(OptionError, match="memory must be tensors by name, not a int"):
        method_.select(plan, capacity=0.5, memory=3)
    whole = Closing({}, (), other, tasks=[Task(0, 1.0, Index.whole(other), 0)])
    with pytest.raises(SelectionError, match="the memory does not count the 8 units of group 'a'"):
        method_.select(plan, capacity=0.5, memory=method_.remember(whole))
    counted = {f"seen.{name}": torch.full((group.size,), 3) for name, group in plan.groups.items()}
    with pytest.raises(SelectionError, match=r"a memory of 2 clients cannot count \[3, 3, .*\] for 'a'"):
        method_.select(plan, capacity=0.5, memory=counted | {"clients": torch.tensor(2)})


def test_units_that_differ_between_tensors_cannot_be_counted():
    plan = mlp_plan()
    tasks = method("fedbrb").assign(plan, [(0, 0.5)], 0)
    with pytest.raises(SelectionError, match="units can be counted only where a whole width group keeps the same ones"):
        method("fedminoccurances").remember(Closing({}, (), plan, tasks=tasks))


def test_threads_choose_as_one_does():
    plan = heads_plan()
    state = random_state(plan)

    def choose(_):
        return [
            method(name).select(plan, capacity=0.5, round=round, client=1, clients=3, state=state).key
            for name in METHODS
            for round in range(4)
        ]

    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(tuple, pool.map(choose, range(16))))) == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"reads": ("mind",)}, "a method's choice reads 'state', 'memory' or 'own', not 'mind'"),
        ({"collect": "sums"}, "whose clients keep their models hands out no slices, and collects 'updates'"),
        ({"slices": True}, "whose clients keep their models hands out no slices, and collects 'updates'"),
        (
            {"slices": True, "local": Local(before=lambda client: 0)},
            "clients are given something, or do something before they train, only where they hold no slices",
        ),
    ],
)
def test_records_that_make_no_sense_are_refused(changes, why):
    with pytest.raises(OptionError, match=why):
        replace(method("dsfl"), **changes)


@pytest.mark.parametrize("option", [3, None, "text", Option])
def test_an_option_that_is_a_value_is_refused(option):
    with pytest.raises(OptionError, match=r"^option 'hold' of a method must be an Option\(…\), not "):
        own(lambda size, kept, at: torch.arange(kept), options={"hold": option})


def test_what_clients_are_given_must_be_tensors():
    odd = replace(method("dsfl"), local=replace(method("dsfl").local, gives=lambda memory, at: {"samples": [1, 2]}))
    with pytest.raises(OptionError, match="gives of dsfl must return tensors by name, not a list as 'samples'"):
        odd.send([Task(0, 1.0, None, 0)], {}, {}, plan=mlp_plan(), round=0, seed=0, clients=1)


def own(units, **more):
    """A method of one's own that keeps these units."""
    return Method("mine", "Mine", "-", "-", choose=per_group(units), **more).with_options()


@pytest.mark.parametrize("kept", [1, 3])
def test_a_choice_keeps_as_many_units_as_it_is_told(kept):
    mine = own(lambda size, asked, at: torch.arange(kept))
    where = r"^round 0, client 0, capacity 0\.5, stage choose: "
    with pytest.raises(SelectionError, match=where + f"mine keeps {kept} units of group 'a', but 4 were asked for"):
        mine.select(mlp_plan(), capacity=0.5)


@pytest.mark.parametrize(
    ("chosen", "what"),
    [
        (torch.arange(4.0), "a Tensor of torch.float32"),
        (np.arange(4.0), "a ndarray of float64"),
        ([0.5] * 40, "[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, ...]"),
        (None, "None"),
    ],
    ids=["tensor", "numpy", "list", "nothing"],
)
def test_units_that_are_no_whole_numbers_are_named_by_their_type(chosen, what):
    with pytest.raises(SelectionError) as refused:
        own(lambda size, kept, at: chosen).select(mlp_plan(), capacity=0.5)
    assert str(refused.value).endswith(f"units of group 'a' must be whole numbers, not {what}")


def test_the_order_of_units_does_not_matter():
    """Sorted, in another order or as a list: the same sub-models, trained and put back to the same bits."""
    orders = {
        "sorted": lambda chosen: torch.tensor(sorted(chosen)),
        "as drawn": torch.tensor,
        "backwards": lambda chosen: torch.tensor(sorted(chosen, reverse=True)),
        "a list": list,
    }
    states = []
    for order in orders.values():
        mine = own(lambda size, kept, at, order=order: order(at.generator().permutation(size)[:kept].tolist()))
        index = mine.select(mlp_plan(), capacity=0.5, seed=1)
        assert all(torch.equal(units, units.sort().values) for dims in index.values() for units in dims)
        states.append(Experiment(small("devices.capacities=1/2:2 1/4:1"), method=mine).run().server.state)
    assert all(same(states[0], state) for state in states[1:])


@pytest.mark.parametrize(
    ("what", "look"),
    [
        ("state", lambda at: at.state["a.weight"]),
        ("state", lambda at: at.state.get("a.weight")),
        ("memory", lambda at: at.memory["seen"]),
        ("memory", lambda at: under(at.memory, "seen")[at.group]),
        ("memory", lambda at: at.memory.get("seen", torch.arange(8))),
        ("memory", lambda at: torch.arange(8) if "seen" in at.memory else torch.arange(4)),
        ("memory", lambda at: at.memory or torch.arange(8)),
        ("own", lambda at: at.own[0]),
    ],
)
def test_a_choice_that_looks_at_what_it_does_not_read_is_told_to_say_so(what, look):
    mine = own(lambda size, kept, at: look(at)[:kept])
    message = rf"^mine cannot choose.*: at.{what} is there only for .* says so, Method\(…, reads=\(\"{what}\",\)\)$"
    with pytest.raises(OptionError, match=message):
        mine.select(mlp_plan(), capacity=0.5, state=random_state(mlp_plan()))
    with pytest.raises(OptionError, match=message):  # which some engines would have and others not
        mine.select(mlp_plan(), capacity=0.5, state=random_state(mlp_plan()), memory={"seen": torch.arange(8)})


@pytest.mark.parametrize(
    ("look", "reads", "said"),
    [
        (lambda at: at.options.get("none")[0], ("state",), "TypeError: 'NoneType' object is not subscriptable"),
        (lambda at: at.memory["seen"], ("memory",), "KeyError: 'seen'"),
    ],
)
def test_other_errors_of_a_choice_say_where_they_were_raised(look, reads, said):
    mine = own(lambda size, kept, at: look(at), reads=reads)
    where = rf"^round 4, client 7, capacity 0.5, stage choose: {said} \({Path(__file__).name}, line \d+\)$"
    with pytest.raises(ClientError, match=where) as caught:
        mine.select(mlp_plan(), capacity=0.5, round=4, number=7, state={})
    assert type(caught.value.__cause__).__name__ in said


def by_arange(size, kept, at):
    return torch.arange(kept)


def by_share(size, kept, at):
    return (torch.arange(kept) + size // 2) % size


def without_asking(size, kept, at):
    return torch.arange(4)


def of_two(size, kept):
    return torch.arange(kept)


ONE_GROUP = r" is called with \(plan, counts, at\) for the whole model, but chooses for one group, \(size, kept, at\): "


@pytest.mark.parametrize("units", [by_arange, by_share, without_asking])
def test_a_choice_of_one_group_is_told_to_be_wrapped(units):
    mine = Method("mine", "Mine", "-", "-", choose=units).with_options()
    name = units.__name__
    message = rf"^mine cannot choose: {name}{ONE_GROUP}wrap it, choose=per_group\({name}\)$"
    with pytest.raises(OptionError, match=message) as refused:
        mine.select(mlp_plan(), capacity=0.5)
    assert refused.value.__cause__ is None


def test_a_choice_with_other_arguments_is_told_which_there_are():
    every = r"with \(size, kept, at\) for every group, but takes \(size, kept\)$"
    with pytest.raises(OptionError, match=rf"^mine cannot choose: of_two is called {every}"):
        own(of_two).select(mlp_plan(), capacity=0.5)
    mine = Method("mine", "Mine", "-", "-", choose=of_two).with_options()
    whole = r"is called with \(plan, counts, at\) for the whole model, or wrapped, choose=per_group\(of_two\), "
    with pytest.raises(OptionError, match=rf"^mine cannot choose: of_two {whole}{every}"):
        mine.select(mlp_plan(), capacity=0.5)


def test_a_choice_for_the_whole_model_that_fails_says_where():
    def whole(plan, counts, at):
        return Index.of_units(plan, {name: torch.arange(counts) for name in plan.groups})

    mine = Method("mine", "Mine", "-", "-", choose=whole).with_options()
    with pytest.raises(ClientError, match=rf"TypeError: arange.* \({Path(__file__).name}, line \d+\)$"):
        mine.select(mlp_plan(), capacity=0.5)


def test_what_is_no_choice_is_refused():
    with pytest.raises(OptionError, match="^choose of a method must be a function, not 3$"):
        Method("mine", "Mine", "-", "-", choose=3)
    nothing = Method("mine", "Mine", "-", "-", choose=lambda plan, counts, at: None).with_options()
    with pytest.raises(OptionError, match="^mine must choose an Index, or a part of another kind, not a NoneType$"):
        nothing.select(mlp_plan(), capacity=0.5)


def test_a_value_that_an_options_check_fails_on_is_not_allowed():
    strength = Option(0.1, "a number of at least 0", lambda value: value >= 0, "how much")
    mine = Method("mine", "Mine", "-", "-", choose=per_group(lambda *_: None), options={"strength": strength})
    with pytest.raises(OptionError, match="^mine option strength must be a number of at least 0, not 'x'$"):
        mine.with_options(strength="x")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reports": lambda *_: {}, "adds": ("a",)}, "keeps their models, and has no reports beside them"),
        ({"rows": ("targets",)}, "come with the targets of a batch: name them otherwise"),
    ],
)
def test_a_rule_whose_parts_do_not_fit_each_other_is_refused(changes, said):
    with pytest.raises(OptionError, match=said):
        replace(method("dsfl").local, **changes)
