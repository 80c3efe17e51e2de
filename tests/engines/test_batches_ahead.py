"""Batches of the next round are gathered while this one trains: when, for whom, and that it changes no bit."""

from dataclasses import replace

import pytest
import torch

from fedwidth.config.read import read_settings
from fedwidth.data import Transform, load
from fedwidth.engines import make_engine
from fedwidth.engines.flat.engine import FlatEngine
from fedwidth.engines.flat.jobs import make_jobs, orders_of
from fedwidth.engines.slots import batches as gathering
from fedwidth.engines.slots.batches import Gathered, batches_of
from fedwidth.engines.slots.pool import Slots
from fedwidth.experiment import Experiment
from fedwidth.randomness import torch_generator
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.training.batches import batches
from small_runs import same

CHANGES = ["rounds=4", "evaluation.every=4", "training.batch_size=20", "data.clients=12", "devices.per_round=5"]
CHANGES += ["model.options={widths=[4,8]}", "devices.capacities=a1-b1", "devices.dynamic=true", "engine=cuda"]


def experiment(*changes, data=None):
    return Experiment(read_settings("quickstart", [*CHANGES, *changes]).main, data=data)


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
    monkeypatch.setattr(gathering, "MAX_AHEAD", 0)
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


def test_they_are_what_the_serial_engine_takes_batch_by_batch_augmented_as_there():
    digits = load("digits")
    data = replace(digits, transform=Transform((0.3,), (0.5,), scale=digits.transform.scale, padding=1, flip=True))
    run = Experiment(read_settings("quickstart", CHANGES).main, data=data)
    (job,) = jobs_of(run, [7], 2)
    (found,) = batches_of(run.trainer, [job.order])
    order, augment = (torch_generator(run.settings.seed, what, 2, 7) for what in ("order", "augment"))
    expected = list(batches(run.partition[7], run.settings.training, order))
    assert len(found) == len(expected) > 1
    for (inputs, targets), samples in zip(found, expected, strict=True):
        augmented, answers = data.batch(data.train, samples, train=True, generator=augment)
        assert torch.equal(inputs, augmented)
        assert torch.equal(targets, answers)
        assert not torch.equal(inputs, data.batch(data.train, samples)[0])


def test_room_counts_inputs_and_targets_and_is_for_one_round(monkeypatch):
    run = experiment()
    (job,), (other,) = jobs_of(run, [1], 0), jobs_of(run, [1], 1)
    samples, pixels = len(run.partition[1]), 8 * 8  # digits in single precision, and a label of eight bytes
    monkeypatch.setattr(gathering, "MAX_AHEAD", samples * (4 * pixels + 8))
    store = Gathered()
    store.add(run.trainer, [job.order])
    store.add(run.trainer, [other.order])
    assert [order for order, _ in store._held.values()] == [job.order]
    store.clear()
    store.add(run.trainer, [other.order])
    assert [order for order, _ in store._held.values()] == [other.order]
    monkeypatch.setattr(gathering, "MAX_AHEAD", samples * (4 * pixels + 8) - 1)
    store = Gathered()
    store.add(run.trainer, [job.order])
    assert len(store) == 0


def test_what_nobody_came_for_gives_its_room_back(monkeypatch, gathered):
    sizes = {len(share) for share in experiment("data.partition=iid", "data.partition_options={}").partition}
    monkeypatch.setattr(gathering, "MAX_AHEAD", 5 * max(sizes) * (4 * 64 + 8))
    run, ended = experiment("data.partition=iid", "data.partition_options={}", "rounds=6"), []
    run.run(on_round=lambda _: ended.append(sum(gathered)))
    assert ended == [10, 15, 20, 25, 30, 30]  # room for one round is enough to be ahead in all


@pytest.mark.parametrize("engine", ["serial", "cuda", "vectorised"])
def test_a_round_to_come_may_have_no_clients(engine):
    result = experiment("devices.per_round=1", "devices.excluded=[0.5]", "rounds=8", f"engine={engine}").run()
    cohorts = [line["clients"] for line in result.metrics]
    assert [] in cohorts[1:]
    assert any(cohorts)


def test_tasks_that_come_otherwise_than_expected_are_gathered_anew(gathered):
    run, fresh = experiment(), experiment()
    engine, other = make_engine(run.trainer), make_engine(fresh.trainer)
    state = run.first_state

    def tasks(clients, round):
        return run.method.assign(run.plan, [(client, 1.0) for client in clients], round)

    engine.run(state, tasks([0, 1], 0), 0)
    for prepared, coming, round in [([2, 3], [4, 5], 1), ([2, 3], None, 2)]:
        expecting = tasks(prepared, 1)
        engine.prepare(expecting, 1)
        come = tasks(coming, round) if coming else expecting  # other clients, and the same ones in another round
        sums, report = engine.run(state, come, round)
        expected, reported = other.run(state, list(come), round)
        assert report == reported
        assert all(torch.equal(a.flat_mean, b.flat_mean) for a, b in zip(sums, expected, strict=True))


def memory(monkeypatch, fails):
    """Training fails for want of memory where `fails(crew)` says so."""
    train = Slots._train_wave

    def train_wave(crew, wave):
        if fails(crew):
            raise torch.OutOfMemoryError("out of memory")
        return train(crew, wave)

    monkeypatch.setattr(Slots, "_train_wave", train_wave)


def test_without_memory_they_go_before_any_slot_does(monkeypatch, recwarn):
    expected = experiment("slots=2").run()
    memory(monkeypatch, lambda crew: len(crew._gathered) > 0)
    found = experiment("slots=2").run()
    assert same(expected.server.state, found.server.state)
    assert not recwarn.list


def test_one_slot_alone_does_without_them_too(monkeypatch):
    run = experiment("slots=1")
    expected = experiment("slots=1").run()
    memory(monkeypatch, lambda crew: len(crew._gathered) > 0)
    engine = make_engine(run.trainer)
    engine.crew.most = 1  # for all widths together
    assert same(expected.server.state, run.run(engine=engine).server.state)


def test_then_slots_go_and_nothing_is_gathered_ahead_any_more(monkeypatch, gathered):
    run, late = experiment("slots=2", "devices.capacities=a1"), []
    memory(monkeypatch, lambda crew: len(crew._gathered) > 0 or (len(late) > 1 and crew.per_size > 1))
    with pytest.warns(UserWarning, match="fewer slots, 1 a width"):
        run.run(on_round=late.append)
    # Round 1 in three waves; round 2 was gathered ahead, and again in waves without memory for both; from then on in
    # waves, of one client each since there is one slot.
    assert gathered == [2, 2, 1, 5, 2, 2, 1, *[1] * 10]


def test_what_does_not_fit_while_preparing_is_made_later(monkeypatch):
    expected = experiment().run()

    def fail(store, trainer, orders):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(Gathered, "add", fail)
    prepared = []
    take = FlatEngine._take_prepared

    def taking(engine, tasks, round):
        prepared.append(engine._prepared is not None)
        return take(engine, tasks, round)

    monkeypatch.setattr(FlatEngine, "_take_prepared", taking)
    assert same(expected.server.state, experiment().run().server.state)
    assert prepared == [False, True, True, True]  # positions and orders were ready all the same


def test_a_closed_crew_holds_none():
    run = experiment()
    engine = make_engine(run.trainer)
    engine.crew.gather(run.trainer, [job.order for job in jobs_of(run, [1, 2], 0)])
    assert len(engine.crew._gathered) == 2
    engine.close()
    assert len(engine.crew._gathered) == 0


def test_a_pack_gathers_for_runs_that_train_and_not_for_their_equals(gathered):
    changes = ["devices.capacities=a1", "slots=2"]
    first = experiment(*changes)
    runs = [first, *(experiment(*changes, f"method.name={name}", data=first.data) for name in ("heterofl", "fedavg"))]
    run_in_lockstep(runs)
    assert sum(gathered) == 4 * 5  # four rounds of five clients, once for all three
