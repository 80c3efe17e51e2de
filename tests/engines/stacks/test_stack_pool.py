"""Merged stacks side by side, as on a GPU: they give what one stack gives, and name the right client."""

from functools import cache

import pytest
import torch

from fedwidth.config.read import read_settings
from fedwidth.data import from_tensors, load
from fedwidth.engines import FlatEngine
from fedwidth.engines.stacks.pool import StackPool
from fedwidth.engines.stacks.stack import Stack
from fedwidth.errors import UpdateError
from fedwidth.experiment import Experiment, build_model
from small_runs import same

CHANGES = ["rounds=2", "evaluation.every=2", "devices.dynamic=true", "training.batch_size=20", "data.clients=12"]
CHANGES += ["model.options={widths=[4,8]}", "devices.capacities=a1-b1", "devices.per_round=9", "engine=vectorised"]
CHANGES += ["training.steps=3"]  # of equal batches: only such clients share a stack where there is batch norm


def prepared(change=lambda *_: None, *more):
    """The quick start in double precision; `change` may spoil the inputs."""
    settings = read_settings("quickstart", [*CHANGES, *more]).main
    digits = load("digits")
    train, test = (digits.transform(split.inputs).double() for split in (digits.train, digits.test))
    change(train, Experiment(settings, data=digits).partition)
    data = from_tensors(train, digits.train.targets, test, digits.test.targets, kind="images")
    return Experiment(settings, model=build_model(settings, data).double(), data=data)


plain = cache(prepared)


def run(experiment, **pool):
    engine = FlatEngine(experiment.trainer, StackPool(experiment.trainer, **pool), averages_here=True)
    return experiment.run(engine=engine)


@cache
def side_by_side():
    return run(plain(), merges=True, rows=2)


def test_merged_stacks_side_by_side_give_what_one_stack_gives():
    expected, found = run(plain()), side_by_side()
    state = expected.server.state
    assert max(float((state[n] - found.server.state[n]).abs().max()) for n in state) < 1e-10
    assert expected.metrics[-1]["train_loss"] == pytest.approx(found.metrics[-1]["train_loss"], rel=1e-9)


def test_no_memory_for_one_of_them_trains_all_again_with_fewer_at_a_time():
    busy = set()

    class TwoAtATime(Stack):
        """A stack that finds no memory while two others train."""

        def train(self, *given):
            busy.add(self)
            if len(busy) > 2:
                busy.clear()
                raise torch.OutOfMemoryError("no room for a third one")
            return super().train(*given)

        def join(self):
            busy.discard(self)
            super().join()

    with pytest.warns(UserWarning, match="the vectorised engine goes on with fewer stacks") as said:
        found = run(plain(), merges=True, rows=2, make_stack=TwoAtATime)
    assert len(said) <= 2
    assert same(dict(side_by_side().server.state), dict(found.server.state))


@pytest.mark.parametrize("rows", [2, 9])
def test_who_sent_what_is_not_finite_is_found_among_merged_neighbours(rows):
    alike = "devices.capacities=a1"
    cohort = [client for client, _ in prepared(lambda *_: None, alike).cohort(0)]
    for culprits in ([cohort[4]], [cohort[1], cohort[2]]):  # the last two in different stacks, if these have two rows

        def spoil(train, partition, culprits=culprits):
            for culprit in culprits:
                train[partition[culprit]] = 1e308  # too much for the first convolution

        with pytest.raises(UpdateError, match=f"^client {culprits[0]} sent a value in '.*' that is not finite"):
            run(prepared(spoil, alike), merges=True, rows=rows)
