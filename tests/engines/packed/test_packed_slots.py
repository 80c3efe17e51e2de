"""Runs whose clients train side by side in slots give, bit for bit, what they give one by one."""

import gc
import warnings
import weakref
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import torch

from fedwidth.config.read import read_settings
from fedwidth.engines.packed.clients import RunRound
from fedwidth.engines.packed.engine import PackedEngine
from fedwidth.engines.slots import pool as slot_pool
from fedwidth.engines.slots.making import make_slot
from fedwidth.engines.slots.pool import SlotPool
from fedwidth.errors import OptionError, UpdateError
from fedwidth.experiment import Experiment, Stopped
from fedwidth.methods import method
from fedwidth.run.folder import read_metrics
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.run.lockstep.lane import lanes_of
from fedwidth.run.lockstep.packing import explain_packed_engine
from small_runs import same

BASE = ["rounds=3", "evaluation.every=1", "engine=cuda", "data.clients=8", "devices.per_round=5", "slots=2"]
BASE += ["devices.capacities=a1-b1-c1", "devices.dynamic=true", "training.batch_size=64", "evaluation.local=false"]
MODELS = {
    "mlp": ["model.name=mlp", "model.options={hidden=[16,8]}", "training.lr=0.05"],
    "cnn": ["model.options={widths=[8,8]}", "training.lr=0.05"],
}
VARIANTS = (
    ["seed=1"],
    ["seed=2", "method.name=heterofl"],
    ["seed=3", "method.name=fedminoccurances", "data.partition=dirichlet", "data.partition_options={alpha=1.0}"],
    ["seed=1", "method.name=fedbrb", "training.lr=0.02", "rounds=2"],
)


def experiments(*changes_of_each, model="mlp"):
    found = []
    for changes in changes_of_each:
        settings = read_settings("quickstart", [*BASE, *MODELS[model], *changes]).main
        found.append(Experiment(settings, data=found[0].data if found else None))
    return found


def equal(one, other):
    return all(torch.equal(one.server.state[name], other.server.state[name]) for name in one.server.state)


@pytest.mark.parametrize("model", MODELS)
def test_packed_runs_equal_single_runs_bit_for_bit(model):
    single = [run.run() for run in experiments(*VARIANTS, model=model)]
    packed = run_in_lockstep(experiments(*VARIANTS, model=model))
    for one, other in zip(single, packed, strict=True):
        assert equal(one, other)
        for name in ("train_loss", "global_accuracy", "clients"):
            assert [line[name] for line in one.metrics] == [line[name] for line in other.metrics]


@pytest.mark.parametrize("name", ["fedhm", "prism", "flanc", "feddf"])
def test_parts_that_are_no_slices_train_in_the_slots_of_a_pack(name):
    taught = ["method.options={steps=2}"] if name == "feddf" else []
    once = [f"method.name={name}", "rounds=2", "evaluation.capacities=[]", *taught]
    changes = [[*once, f"seed={seed}"] for seed in (1, 2)]
    single, packed = [run.run() for run in experiments(*changes)], run_in_lockstep(experiments(*changes))
    assert all(equal(one, other) for one, other in zip(single, packed, strict=True))


def test_a_stopped_pack_goes_on_to_the_same_bits(tmp_path):
    places = [tmp_path / str(number) for number in range(len(VARIANTS))]
    whole = run_in_lockstep(experiments(*VARIANTS))
    with pytest.raises(Stopped):
        run_in_lockstep(experiments(*VARIANTS), places, stop=lambda: True)
    again = run_in_lockstep(experiments(*VARIANTS), places, resume=True)
    assert all(equal(one, other) for one, other in zip(whole, again, strict=True))


@pytest.mark.parametrize("room", [1, 3, 8])
def test_lanes_that_have_no_memory_beside_each_other_become_one(monkeypatch, room):
    expected = [run.run() for run in experiments(*VARIANTS[:3])]
    alive = []

    def make(*given):
        gc.collect()
        if sum(slot() is not None for slot in alive) >= room:
            raise torch.OutOfMemoryError("no room for another slot")
        slot = make_slot(*given)
        alive.append(weakref.ref(slot))
        return slot

    monkeypatch.setitem(SlotPool.__init__.__kwdefaults__, "make_slot", make)
    gc.freeze()  # what other tests have left need not be looked at in every collection
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = run_in_lockstep(experiments(*VARIANTS[:3]))
    finally:
        gc.unfreeze()
    assert "out of memory on cpu: the runs of the pack go on in one lane" in [str(each.message) for each in said]
    assert all(equal(one, other) for one, other in zip(expected, found, strict=True))


def test_a_round_that_has_ended_is_told_of_where_the_next_one_cannot_begin():
    def choose(plan, counts, at):
        if at.round == 2:
            raise ValueError("no third round")
        return method("feddropout").choose(plan, counts, at)

    settings = [read_settings("quickstart", [*BASE, *MODELS["mlp"], f"seed={seed}"]).main for seed in (1, 2)]
    first = Experiment(settings[0], method=replace(method("feddropout"), choose=choose, reads=("memory",)))
    told = []
    with pytest.raises(ValueError, match="no third round"):
        run_in_lockstep(
            [first, Experiment(settings[1], method=first.method, data=first.data)],
            on_round=lambda number, line: told.append((number, line["round"])),
        )
    assert told == [(0, 1), (1, 1), (0, 2)], "the second run had not ended its round yet"


def test_a_pack_stops_all_its_runs_in_the_same_round(tmp_path):
    asked = []

    def stop():
        asked.append(1)
        return len(asked) == 2

    places = [tmp_path / str(number) for number in range(3)]
    with pytest.raises(Stopped, match="stopped after round 2 of 3"):
        run_in_lockstep(experiments(*VARIANTS[:3]), places, stop=stop)
    assert [len(read_metrics(place)) for place in places] == [2, 2, 2]


def test_while_one_run_is_averaged_the_clients_of_the_others_train(monkeypatch):
    events = []
    train = slot_pool._train

    def noted(flat_task, *rest):
        events.append(("train", flat_task.trainer.settings.seed, flat_task.round))
        train(flat_task, *rest)

    def close(closing):
        events.append(("average", closing.seed, closing.round))
        return closing.average()

    monkeypatch.setattr(slot_pool, "_train", noted)
    settings = [read_settings("quickstart", [*BASE, *MODELS["mlp"], f"seed={seed}"]).main for seed in (1, 2)]
    first = Experiment(settings[0], method=replace(method("fedrolex"), close=close))
    run_in_lockstep([first, Experiment(settings[1], method=first.method, data=first.data)])
    order = list(dict.fromkeys(events))
    begun = [("train", 1, 0), ("train", 2, 0)]
    middle = [
        event for round in (1, 2) for seed in (1, 2) for event in (("average", seed, round - 1), ("train", seed, round))
    ]
    assert order == [*begun, *middle, ("average", 1, 2), ("average", 2, 2)]


@pytest.mark.parametrize(
    ("seeds", "rates", "lanes"),
    [
        ((1, 2, 3), (0.1, 0.1, 0.1), [[0], [1], [2]]),
        ((1, 1, 2), (0.1, 0.1, 0.1), [[0, 1], [2]]),  # the first two may be equal, which only one lane finds out
        ((1, 1, 1), (0.1, 0.2, 0.1), [[0, 2], [1]]),
        ((1, 2, 3, 4), (0.1, 0.1, 0.1, 0.1), [[0, 3], [1], [2]]),
    ],
)
def test_runs_that_cannot_be_equal_are_in_lanes_of_their_own(seeds, rates, lanes):
    changes = [[f"seed={seed}", f"training.lr={rate}"] for seed, rate in zip(seeds, rates, strict=True)]
    assert lanes_of(experiments(*changes)) == lanes
    stacked = experiments(*([*each, "engine=vectorised"] for each in changes))
    assert lanes_of(stacked) == [list(range(len(seeds)))]


def test_the_next_round_is_chosen_once():
    settings = read_settings("quickstart", [*BASE, *MODELS["mlp"], "rounds=4", "evaluation.every=4"]).main
    chosen = []

    def counted(name):
        def choose(plan, counts, at):
            if at.clients == 5:  # another number is asked about where the method is tried out
                chosen.append((name, at.round, at.client))
            return method(name).choose(plan, counts, at)

        return replace(method(name), choose=choose)

    first = Experiment(settings, method=counted("feddropout"))
    run_in_lockstep([first, Experiment(settings, method=counted("fedcover"), data=first.data)])
    early = Counter(each for each in chosen if each[1] < 2)  # of the last two, sub-models are measured, too
    assert set(early.values()) == {1}
    rounds = Counter((name, round) for name, round, _ in early)
    assert rounds == dict.fromkeys(product(("feddropout", "fedcover"), range(2)), 5), "five clients a round"


class Counted:
    """Makes slots that note their clients, and have no memory for some of them."""

    def __init__(self, *no_room):
        self.no_room, self.begun = no_room, 0

    def make(self, *arguments):
        slot = make_slot(*arguments)
        begin = slot.begin

        def counted(*given, **options):
            self.begun += 1
            if self.begun in self.no_room:
                raise torch.OutOfMemoryError("no room")
            begin(*given, **options)

        slot.begin = counted
        return slot

    def sums(self, runs):
        """The sums of a first round."""
        engine = PackedEngine([run.trainer for run in runs], slots=SlotPool(runs[0].trainer, make_slot=self.make))
        state = runs[0].first_state
        rounds = [RunRound(run.trainer, state, run.method.assign(run.plan, run.cohort(0), 0), 0) for run in runs]
        found = [sums for sums, _ in engine.start(rounds)()]
        engine.close()
        return found


def test_equal_runs_train_once():
    made = Counted()
    one, other = made.sums(experiments(["seed=1"], ["seed=1"]))
    assert made.begun == 5  # clients a round
    assert one is other


def test_no_memory_for_the_slots_of_all_runs_changes_nothing_but_their_number():
    expected = Counted().sums(experiments(*VARIANTS[:2]))
    with pytest.warns(UserWarning, match="goes on with fewer slots, 2 a width"):
        found = Counted(4).sums(experiments(*VARIANTS[:2]))
    for one, other in zip(expected, found, strict=True):
        assert [cohort.clients for cohort in one] == [cohort.clients for cohort in other]
        assert all(same(dict(a.mean), dict(b.mean)) for a, b in zip(one, other, strict=True))


def test_a_run_that_fails_is_named():
    runs = experiments(["seed=1"], ["seed=2", "training.lr=1e30"])
    with pytest.raises(UpdateError, match=r"^fedrolex with seed 2: client (.) sent a value .*client \1, capacity"):
        run_in_lockstep(runs)


def test_stacks_and_slots_do_not_mix():
    with pytest.raises(OptionError, match="cannot train as one batch: their engines differ"):
        run_in_lockstep(experiments(["seed=1"], ["seed=2", "engine=vectorised"]))


def test_what_is_said_of_them():
    assert explain_packed_engine(*experiments([])) == "cuda (their clients side by side in slots)"
    assert explain_packed_engine(*experiments(["engine=vectorised"])) == "vectorised (their clients stacked by size)"
