"""Batches of the next round are gathered while this one trains: when, for whom, and that it changes no bit."""

import pytest
import torch

from fedwidth.config import read_settings
from fedwidth.engines import batches as gathering
from fedwidth.engines import make_engine
from fedwidth.engines.batches import Gathered, batches_of
from fedwidth.engines.jobs import make_jobs, orders_of
from fedwidth.experiment import Experiment
from small_runs import same

CHANGES = ["rounds=4", "evaluation.every=4", "training.batch_size=20", "data.clients=12", "devices.per_round=5"]
CHANGES += ["model.options={widths=[4,8]}", "devices.capacities=a1-b1", "devices.dynamic=true", "engine=cuda"]


def experiment(*changes):
    return Experiment(read_settings("quickstart", [*CHANGES, *changes]).main)


@pytest.fixture
def gathered(monkeypatch):
    """How many clients' batches were gathered at a time."""
    numbers = []

    def count(trainer, orders):
        numbers.append(len(orders))
        return batches_of(trainer, orders)

    monkeypatch.setattr(gathering, "batches_of", count)
    return numbers


def test_every_round_is_gathered_once_the_next_one_while_this_one_trains(gathered):
    run, ended = experiment(), []
    run.run(on_round=lambda _: ended.append(sum(gathered)))
    assert gathered == [5, 5, 5, 5]
    assert ended == [10, 15, 20, 20]  # after the first round those of the second are there; the last one has none


@pytest.mark.parametrize("slots", [1, 2])
def test_clients_that_take_turns_take_their_batches_from_what_was_gathered(gathered, slots):
    run = experiment(f"slots={slots}", "devices.dynamic=false", "devices.capacities=a1")
    waves = -(-5 // slots)
    run.run()
    assert len(gathered) == waves + 3  # the first round in waves, the others in one go
    assert sum(gathered) == 20


def test_it_changes_no_bit_and_neither_does_the_room(monkeypatch, gathered):
    expected = experiment().run()
    monkeypatch.setattr(gathering, "MOST_AHEAD", 0)
    gathered.clear()
    found = experiment("slots=1").run()
    assert len(gathered) > 4  # wave by wave
    assert same(expected.server.state, found.server.state)


def jobs_of(run, clients, round):
    tasks = run.method.assign(run.plan, [(client, 1.0) for client in clients], round)
    orders = orders_of(run.trainer, tasks, round)
    nothing = [torch.zeros(0)] * len(tasks)
    return make_jobs(run.trainer, tasks, nothing, nothing, orders=orders, round=round)


def equal(found, expected):
    return all(
        torch.equal(a, b)
        for one, other in zip(found, expected, strict=True)
        for pair, twin in zip(one, other, strict=True)
        for a, b in zip(pair, twin, strict=True)
    )


def test_what_was_gathered_for_others_is_not_taken():
    run, store = experiment(), Gathered()
    expected, others = jobs_of(run, [1, 2, 3], 0), jobs_of(run, [4, 5, 6], 0)
    store.add(run.trainer, [job.order for job in others])
    found = store.take(expected)
    assert equal(found, batches_of(run.trainer, [job.order for job in expected]))
    again = jobs_of(run, [4, 5, 6], 0)  # the same clients, but nobody said that it is the same round
    assert equal(store.take(again), store.take(others))
    assert not store._held


def test_only_what_is_missing_is_gathered_again(gathered):
    run, store = experiment(), Gathered()
    jobs = jobs_of(run, [1, 2, 3, 4], 0)
    store.add(run.trainer, [jobs[2].order, jobs[0].order])
    assert equal(store.take(jobs), batches_of(run.trainer, [job.order for job in jobs]))
    assert gathered == [2, 2]


def test_they_fit_what_each_client_draws_by_hand():
    run = experiment("training.augment=false")
    (job,) = jobs_of(run, [7], 2)
    (((inputs, targets), *_),) = batches_of(run.trainer, [job.order])
    samples = job.order.samples[0]
    assert torch.equal(targets, run.data.train.targets[samples])
    assert torch.equal(inputs, run.data.transform(run.data.train.inputs[samples]))
    assert sum(job.order.lengths) == len(run.partition[7])


def test_room_is_for_one_round(monkeypatch):
    run, store = experiment(), Gathered()
    (job,) = jobs_of(run, [1], 0)
    each = run.data.transform(run.data.train.inputs[:1])
    needed = each.numel() * each.element_size() * sum(job.order.lengths)
    monkeypatch.setattr(gathering, "MOST_AHEAD", needed)
    store.clear()
    store.add(run.trainer, [job.order])
    (other,) = jobs_of(run, [1], 1)
    store.add(run.trainer, [other.order])
    assert [order for order, _ in store._held.values()] == [job.order]
    store.clear()
    store.add(run.trainer, [other.order])
    assert [order for order, _ in store._held.values()] == [other.order]


def test_a_crew_that_must_shrink_lets_go_of_them():
    run = experiment()
    engine = make_engine(run.trainer)
    engine.crew.gather(run.trainer, [job.order for job in jobs_of(run, [1, 2], 0)])
    assert engine.crew._gathered._held
    with pytest.warns(UserWarning, match="fewer slots"):
        engine.crew.shrink()
    assert not engine.crew._gathered._held
