"""Slots on a device that runs out of memory: fewer of them train, and the result has the same bits."""

import weakref
from functools import cache

import pytest
import torch
from torch import nn

from fedwidth.config.read import read_settings
from fedwidth.core.aggregation import finalise
from fedwidth.data import load
from fedwidth.engines import FlatEngine
from fedwidth.engines.slots.making import make_slot
from fedwidth.engines.slots.pool import SlotPool
from fedwidth.errors import ClientError
from fedwidth.experiment import Experiment, build_model
from fedwidth.training.engine import RoundRequest
from small_runs import same, small

CHANGES = ["rounds=2", "evaluation.every=2", "engine=cuda", "devices.dynamic=true", "training.batch_size=20"]
CHANGES += ["model.options={widths=[4,8]}", "devices.capacities=a1-b1", "slots=4", "training.steps=2"]


class NoRoom:
    """Raises an error of memory at some of the times it is asked."""

    def __init__(self, *times, error=torch.OutOfMemoryError):
        self.times, self.error, self.asked = times, error, 0

    def ask(self):
        self.asked += 1
        if self.asked in self.times:
            raise self.error("CUDA out of memory. Tried to allocate 2.00 MiB.")


STEPS = {"room": NoRoom()}
"""What every training step asks for memory."""


class Asking(nn.Module):
    """A model whose training steps ask for memory."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            STEPS["room"].ask()
        return self.model(x)


@cache
def prepared():
    """An experiment, made (and traced) once."""
    settings = read_settings("quickstart", CHANGES).main
    data = load("digits")
    return Experiment(settings, model=Asking(build_model(settings, data)), data=data)


def run(engine=FlatEngine, make_slot=make_slot):
    experiment = prepared()
    pool = SlotPool(experiment.trainer, make_slot=make_slot)
    return experiment.run(engine=engine(experiment.trainer, pool, averages_here=True))


reference = cache(run)


def is_reference(found):
    expected = reference()
    assert [line["train_loss"] for line in expected.metrics] == [line["train_loss"] for line in found.metrics]
    assert [line["clients"] for line in expected.metrics] == [line["clients"] for line in found.metrics]
    return same(dict(expected.server.state), dict(found.server.state))


def asking_slots(room, place):
    """Makes slots that ask for memory when they are made, or in one of their methods."""

    def make(*arguments):
        if place == "make":
            room.ask()
            return make_slot(*arguments)
        slot = make_slot(*arguments)
        call = getattr(slot, place)
        setattr(slot, place, lambda *given, **options: (room.ask(), call(*given, **options))[1])
        return slot

    return make


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
@pytest.mark.parametrize(
    ("place", "times", "left"),
    [
        # The third slot is the second of its width, so halving leaves one of each.
        ("make", (3, 4), ["1 a width", "1 for all widths together"]),
        ("begin", (3, 6), ["2 a width", "1 a width"]),
        ("capture_steps", (3, 6), ["2 a width", "1 a width"]),
        ("train_all", (3, 6), ["2 a width", "1 a width"]),
        ("step", (3, 6), ["2 a width", "1 a width"]),
    ],
)
def test_out_of_memory_goes_on_with_fewer_slots_and_the_same_result(monkeypatch, place, times, left, error):
    reference()
    room = NoRoom(*times, error=error)
    if place == "step":
        monkeypatch.setitem(STEPS, "room", room)
    with pytest.warns(UserWarning, match="out of memory") as said:
        found = run(make_slot=make_slot if place == "step" else asking_slots(room, place))
    assert room.asked > times[-1]
    messages = [str(w.message) for w in said]
    assert [m.rpartition(", ")[2] for m in messages] == left
    assert all(m.startswith("out of memory on cpu: the cuda engine goes on with fewer slots") for m in messages)
    assert is_reference(found)


def test_slots_of_sizes_that_were_not_used_for_longest_are_let_go_of(monkeypatch):
    """Rounds of one client each, with 1, 1/2, 1/4, 1/2 and 1 of the model: two sizes are kept, and no bit changes."""
    experiment = Experiment(small("rounds=5", "engine=cuda", "devices.per_round=1"))

    def trained(pool):
        engine, state, alive = FlatEngine(experiment.trainer, pool), experiment.first_state, []
        for round, capacity in enumerate((1.0, 0.5, 0.25, 0.5, 1.0)):
            tasks = experiment.method.assign(experiment.plan, [(round, capacity)], round)
            sums, _ = engine.train_round(RoundRequest(state, tasks, round))
            state = finalise(state, sums, experiment.plan)
            alive.append([size[0] for size in pool._slots])
        return state, alive

    all_kept, alive = trained(SlotPool(experiment.trainer))
    assert alive[-1] == [0.25, 0.5, 1.0]
    monkeypatch.setattr("fedwidth.engines.slots.pool.MAX_SIZES", 2)
    found, alive = trained(SlotPool(experiment.trainer))
    assert alive == [[1.0], [1.0, 0.5], [0.5, 0.25], [0.25, 0.5], [0.5, 1.0]]
    assert same(all_kept, found)


class NoRoomToStart(FlatEngine):
    """Has no memory for the sums of a round, the first time."""

    room = None

    def start_round(self, *given):
        self.room.ask()
        return super().start_round(*given)


class NoRoomToAdd(FlatEngine):
    """Has no memory to add to the sums of a round, the first time."""

    room = None

    def add_updates(self, *given):
        self.room.ask()
        return super().add_updates(*given)


@pytest.mark.parametrize("engine", [NoRoomToStart, NoRoomToAdd])
def test_no_memory_for_the_sums_begins_the_round_again_with_fewer_slots(engine):
    engine.room = NoRoom(1)
    with pytest.warns(UserWarning, match="fewer slots, . a width"):
        found = run(engine)
    assert engine.room.asked == 3, "two rounds, one of them twice"
    assert is_reference(found)


class NoRoomToPrepare(FlatEngine):
    """Has no memory for the coming round."""

    asked = 0

    def prepare(self, *given):
        NoRoomToPrepare.asked += 1
        raise torch.OutOfMemoryError("no room")


def test_no_memory_to_prepare_the_next_round_is_no_reason_to_train_this_one_again():
    assert is_reference(run(NoRoomToPrepare))  # warnings are errors
    assert NoRoomToPrepare.asked == 1


def test_a_device_with_room_for_one_slot_trains_one_client_at_a_time():
    alive = weakref.WeakSet()

    def make(*arguments):
        if alive:
            raise torch.OutOfMemoryError("no room for a second one")
        slot = make_slot(*arguments)
        alive.add(slot)
        return slot

    with pytest.warns(UserWarning, match="out of memory") as said:
        found = run(make_slot=make)
    assert str(said[-1].message).endswith("fewer slots, 1 for all widths together")
    assert is_reference(found)


def test_a_device_with_room_for_none_says_which_client_did_not_fit():
    expected = r"^round 0, client \d+, capacity \S+, stage train: OutOfMemoryError"
    with pytest.warns(UserWarning, match="out of memory"), pytest.raises(ClientError, match=expected):
        run(make_slot=asking_slots(NoRoom(*range(1, 99)), "make"))
