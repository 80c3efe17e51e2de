"""Stacks on a device that runs out of memory: fewer rows or fewer stacks train at a time, with the same result."""

import gc
import re
import weakref
from dataclasses import replace
from functools import cache

import pytest
import torch

from fedwidth.config.read import read_settings
from fedwidth.data import Transform, from_tensors, load
from fedwidth.engines import FlatEngine
from fedwidth.engines.stacks.pool import StackPool
from fedwidth.engines.stacks.samples import TrainingSamples
from fedwidth.engines.stacks.stack import Stack
from fedwidth.errors import ClientError
from fedwidth.experiment import Experiment, build_model
from small_runs import same

CHANGES = ["rounds=2", "evaluation.every=2", "engine=vectorised", "devices.dynamic=true", "training.batch_size=20"]
CHANGES += ["devices.capacities=a1-b1", "model.name=mlp", "model.options={hidden=[16,8]}", "data.clients=12"]
CHANGES += ["devices.per_round=9", "training.steps=2"]


@cache
def prepared():
    """An experiment in double precision, made (and traced) once."""
    settings = read_settings("quickstart", CHANGES).main
    digits = load("digits")
    inputs = [digits.transform(split.inputs).double() for split in (digits.train, digits.test)]
    data = from_tensors(inputs[0], digits.train.targets, inputs[1], digits.test.targets, kind="images")
    return Experiment(settings, model=build_model(settings, data).double(), data=data)


def run(make_stack=Stack):
    experiment = prepared()
    pool = StackPool(experiment.trainer, make_stack=make_stack)
    return experiment.run(engine=FlatEngine(experiment.trainer, pool, averages_here=True))


reference = cache(run)


class NoRoom:
    """Makes stacks that find no memory at some of the calls of a method, or of their making."""

    def __init__(self, place, times, error=torch.OutOfMemoryError):
        self.place, self.times, self.error, self.asked = place, times, error, 0

    def ask(self):
        self.asked += 1
        if self.asked in self.times:
            raise self.error("CUDA out of memory. Tried to allocate 2.00 MiB.")

    def make(self, *arguments, **options):
        if self.place == "make":
            self.ask()
            return Stack(*arguments, **options)
        stack = Stack(*arguments, **options)
        if self.place == "train":
            train = stack.train
            stack.train = lambda *given: (self.ask(), train(*given))[1]
        else:  # in the middle of a step, when it reads its batch
            stack.samples = Asking(stack.samples, self.ask)
        return stack


class Asking:
    """Training samples whose batches ask for memory."""

    def __init__(self, samples, ask):
        self.samples, self.ask = samples, ask

    def batch(self, *given):
        self.ask()
        return self.samples.batch(*given)

    def __getattr__(self, name):
        return getattr(self.samples, name)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
@pytest.mark.parametrize("place", ["make", "train", "step"])
def test_they_go_on_with_fewer_rows_and_the_same_result(place, error):
    expected, room = reference(), NoRoom(place, (1, 3), error)
    with pytest.warns(UserWarning, match="out of memory") as said:
        found = run(room.make)
    assert room.asked > 3
    messages = [str(w.message) for w in said]
    assert len(messages) in (1, 2)  # where others are kept, it is first tried without them, which needs no warning
    start = "out of memory on cpu: the vectorised engine goes on with smaller stacks, "
    assert all(re.fullmatch(rf"{start}\d of capacity (1|0.5) at a time", message) for message in messages)
    state = expected.server.state
    assert max(float((state[n] - found.server.state[n]).abs().max()) for n in state) < 1e-12
    for one, other in zip(expected.metrics, found.metrics, strict=True):
        assert one["clients"] == other["clients"]
        assert one["macs"] == other["macs"]
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-12)


def test_rows_that_did_not_fit_once_are_not_tried_again():
    asked = []

    def make(*arguments, rows, **options):
        asked.append(rows)
        if rows > 2:
            raise torch.OutOfMemoryError("no room for three rows")
        return Stack(*arguments, rows=rows, **options)

    with pytest.warns(UserWarning, match="out of memory") as said:
        run(make)
    refused = [number for number, rows in enumerate(asked) if rows > 2]
    assert 0 < len(said) <= len(refused) <= 4
    assert max(asked[refused[-1] + 1 :]) == 2


def test_stacks_of_earlier_rounds_make_room_before_anything_shrinks():
    expected, alive, refused = reference(), weakref.WeakSet(), []

    def make(*arguments, **options):
        if alive:
            gc.collect()  # as is done on a GPU
        if alive:
            refused.append(options["rows"])
            raise torch.OutOfMemoryError("no room for a second one")
        stack = Stack(*arguments, **options)
        alive.add(stack)
        return stack

    found = run(make)  # a warning would be an error
    assert refused
    assert same(dict(expected.server.state), dict(found.server.state))


def test_a_device_without_room_for_one_row_says_which_client_did_not_fit():
    expected = r"^round 0, client \d+, capacity \S+, stage train: OutOfMemoryError"
    with pytest.warns(UserWarning, match="out of memory") as said, pytest.raises(ClientError, match=expected):
        run(NoRoom("train", range(1, 99)).make)
    assert " 1 of capacity" in str(said[-1].message)


def test_orders_and_draws_are_replaced_together_or_not_at_all(monkeypatch):
    trainer = prepared().trainer
    flipped = replace(trainer.data, transform=Transform((0.5,), (0.5,), flip=True))
    settings = replace(trainer.settings, training=replace(trainer.settings.training, batch_size=4))
    held = TrainingSamples(replace(trainer, data=flipped, settings=settings))
    real, orders, draws = torch.zeros, [torch.zeros(3, 4, dtype=torch.long)], [torch.ones(3, 4, 3, dtype=torch.long)]

    def zeros(*shape, **options):
        """PyTorch's own, on a device without memory for the draws: there is no other way to have such a device."""
        if len(shape) == 3:
            raise torch.OutOfMemoryError("no room")
        return real(*shape, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros", zeros)
        with pytest.raises(torch.OutOfMemoryError):
            held.load_orders(orders, draws)
    assert held.load_orders(orders, draws) == ([0], True)
    assert held.draws[:3].eq(1).all()
