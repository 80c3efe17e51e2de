"""Batches of the next round are gathered while this one trains: when, for whom, and that it changes no bit."""

from dataclasses import replace

import pytest
import torch

from fedwidth.config.read import read_settings
from fedwidth.data import Transform, load
from fedwidth.engines import make_engine
from fedwidth.engines.flat.engine import FlatEngine
from fedwidth.engines.flat.orders import draw_orders
from fedwidth.engines.flat.tasks import make_flat_tasks
from fedwidth.engines.slots.batches import MAX_BYTES_AHEAD, BatchesAhead, gather_batches
from fedwidth.engines.slots.making import make_slot
from fedwidth.engines.slots.pool import SlotPool
from fedwidth.experiment import Experiment
from fedwidth.randomness import torch_generator
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.training.batches import batches
from small_runs import same

CHANGES = ["rounds=4", "evaluation.every=4", "training.batch_size=20", "data.clients=12", "devices.per_round=5"]
CHANGES += ["model.options={widths=[4,8]}", "devices.capacities=a1-b1", "devices.dynamic=true", "engine=cuda"]


def experiment(*changes, data=None):
    return Experiment(read_settings("quickstart", [*CHANGES, *changes]).main, data=data)


class Counted(BatchesAhead):
    """Notes how many clients' batches were gathered at a time."""

    def __init__(self, max_bytes=MAX_BYTES_AHEAD):
        self.numbers = []
        super().__init__(max_bytes, gather=self.count)

    def count(self, trainer, orders):
        self.numbers.append(len(orders))
        return gather_batches(trainer, orders)


def with_slots(run, batches_ahead, *, make_slot=make_slot):
    """The cuda engine with these batches, as `make_engine` makes it."""
    pool = SlotPool(run.trainer, make_slot=make_slot, batches_ahead=batches_ahead)
    return FlatEngine(run.trainer, pool, averages_here=True)


def test_every_round_is_gathered_once_the_next_one_while_this_one_trains():
    run, ended, ahead = experiment(), [], Counted()
    run.run(engine=with_slots(run, ahead), on_round=lambda _: ended.append(sum(ahead.numbers)))
    assert ahead.numbers == [5, 5, 5, 5]
    assert ended == [10, 15, 20, 20]  # after the first round those of the second are there; the last one has none


@pytest.mark.parametrize("slots", [1, 2])
def test_clients_that_take_turns_take_their_batches_from_what_was_gathered(slots):
    run, ahead = experiment(f"slots={slots}", "devices.dynamic=false", "devices.capacities=a1"), Counted()
    waves = -(-5 // slots)
    run.run(engine=with_slots(run, ahead))
    assert len(ahead.numbers) == waves + 3  # the first round in waves, the others in one go
    assert sum(ahead.numbers) == 20


def test_it_changes_no_bit_and_neither_does_the_room():
    expected = experiment().run()
    run, ahead = experiment("slots=1"), Counted(max_bytes=0)
    found = run.run(engine=with_slots(run, ahead))
    assert len(ahead.numbers) > 4  # wave by wave
    assert same(expected.server.state, found.server.state)


def flat_tasks_of(run, clients, round):
    tasks = run.method.assign(run.plan, [(client, 1.0) for client in clients], round)
    orders = draw_orders(run.trainer, tasks, round)
    nothing = [torch.zeros(0)] * len(tasks)
    starts = [(torch.zeros(0), {})] * len(tasks)
    return make_flat_tasks(run.trainer, tasks, nothing, starts, orders=orders, round=round)


def equal(found, expected):
    return all(
        torch.equal(a, b)
        for one, other in zip(found, expected, strict=True)
        for pair, twin in zip(one, other, strict=True)
        for a, b in zip(pair, twin, strict=True)
    )


def test_what_was_gathered_for_others_is_not_taken():
    run, store = experiment(), BatchesAhead()
    expected, others = flat_tasks_of(run, [1, 2, 3], 0), flat_tasks_of(run, [4, 5, 6], 0)
    store.add(run.trainer, [flat_task.order for flat_task in others])
    found = store.take(expected)
    assert equal(found, gather_batches(run.trainer, [flat_task.order for flat_task in expected]))
    again = flat_tasks_of(run, [4, 5, 6], 0)  # the same clients, but nobody said that it is the same round
    assert equal(store.take(again), store.take(others))
    assert len(store) == 0


def test_only_what_is_missing_is_gathered_again():
    run, store = experiment(), Counted()
    flat_tasks = flat_tasks_of(run, [1, 2, 3, 4], 0)
    store.add(run.trainer, [flat_tasks[2].order, flat_tasks[0].order])
    assert equal(store.take(flat_tasks), gather_batches(run.trainer, [flat_task.order for flat_task in flat_tasks]))
    assert store.numbers == [2, 2]


def test_they_are_what_the_serial_engine_takes_batch_by_batch_augmented_as_there():
    digits = load("digits")
    data = replace(digits, transform=Transform((0.3,), (0.5,), scale=digits.transform.scale, padding=1, flip=True))
    run = Experiment(read_settings("quickstart", CHANGES).main, data=data)
    (flat_task,) = flat_tasks_of(run, [7], 2)
    (found,) = gather_batches(run.trainer, [flat_task.order])
    order, augment = (torch_generator(run.settings.seed, what, 2, 7) for what in ("order", "augment"))
    expected = list(batches(run.partition[7], run.settings.training, order))
    assert len(found) == len(expected) > 1
    for (inputs, targets), samples in zip(found, expected, strict=True):
        augmented, answers = data.batch(data.train, samples, train=True, generator=augment)
        assert torch.equal(inputs, augmented)
        assert torch.equal(targets, answers)
        assert not torch.equal(inputs, data.batch(data.train, samples)[0])


def test_room_counts_inputs_and_targets_and_is_for_one_round():
    run = experiment()
    (first,), (second,) = flat_tasks_of(run, [1], 0), flat_tasks_of(run, [1], 1)
    samples, pixels = len(run.partition[1]), 8 * 8  # digits in single precision, and a label of eight bytes
    store = Counted(max_bytes=samples * (4 * pixels + 8))
    store.add(run.trainer, [first.order])
    store.add(run.trainer, [second.order])
    assert store.numbers == [1], "there was no room for the second"
    store.take([first])
    assert store.numbers == [1], "the first was held"
    store.clear()
    store.add(run.trainer, [second.order])
    store.take([second])
    assert store.numbers == [1, 1], "now the second was held"
    store = BatchesAhead(max_bytes=samples * (4 * pixels + 8) - 1)
    store.add(run.trainer, [first.order])
    assert len(store) == 0


def test_what_nobody_came_for_gives_its_room_back():
    changes = ["data.partition=iid", "data.partition_options={}", "rounds=6"]
    run, ended = experiment(*changes), []
    ahead = Counted(max_bytes=5 * max(len(share) for share in run.partition) * (4 * 64 + 8))
    run.run(engine=with_slots(run, ahead), on_round=lambda _: ended.append(sum(ahead.numbers)))
    assert ended == [10, 15, 20, 25, 30, 30]  # room for one round is enough to be ahead in all


@pytest.mark.parametrize("engine", ["serial", "cuda", "vectorised"])
def test_a_round_to_come_may_have_no_clients(engine):
    result = experiment("devices.per_round=1", "devices.excluded=[0.5]", "rounds=8", f"engine={engine}").run()
    cohorts = [line["clients"] for line in result.metrics]
    assert [] in cohorts[1:]
    assert any(cohorts)


def test_tasks_that_come_otherwise_than_expected_are_gathered_anew():
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


class Memory:
    """A device on which no slot can begin with a client while `fails(pool)` says so."""

    def __init__(self, fails):
        self.fails, self.pool = fails, None

    def make_slot(self, *arguments):
        made = make_slot(*arguments)
        begin = made.begin

        def begin_or_fail(*given, **options):
            if self.fails(self.pool):
                raise torch.OutOfMemoryError("out of memory")
            begin(*given, **options)

        made.begin = begin_or_fail
        return made

    def run(self, run, ahead=None, **options):
        """A run's result with the cuda engine on this device."""
        engine = with_slots(run, ahead, make_slot=self.make_slot)
        self.pool = engine.pool
        return run.run(engine=engine, **options)


def is_ahead(pool):
    return len(pool.batches_ahead) > 0


def test_without_memory_they_go_before_any_slot_does(recwarn):
    expected = experiment("slots=2").run()
    found = Memory(is_ahead).run(experiment("slots=2"))
    assert same(expected.server.state, found.server.state)
    assert not recwarn.list


def test_one_slot_alone_does_without_them_too():
    run, memory = experiment("slots=1"), Memory(is_ahead)
    expected = experiment("slots=1").run()
    engine = with_slots(run, None, make_slot=memory.make_slot)
    memory.pool = engine.pool
    engine.pool.in_all = 1  # for all widths together
    assert same(expected.server.state, run.run(engine=engine).server.state)


def test_then_slots_go_and_nothing_is_gathered_ahead_any_more():
    run, late, ahead = experiment("slots=2", "devices.capacities=a1"), [], Counted()
    memory = Memory(lambda pool: is_ahead(pool) or (len(late) > 1 and pool.per_size > 1))
    with pytest.warns(UserWarning, match="fewer slots, 1 a width"):
        memory.run(run, ahead, on_round=late.append)
    # Round 1 in three waves; round 2 was gathered ahead, and its first wave again without memory for all of it; from
    # then on in waves, the first of which fails again until there is one slot, which takes one client at a time.
    assert ahead.numbers == [2, 2, 1, 5, 2, 2, 1, 2, *[1] * 10]


class NoRoom(BatchesAhead):
    """Has no memory for batches of a coming round."""

    def add(self, trainer, orders):
        raise torch.OutOfMemoryError("out of memory")


def test_what_does_not_fit_while_preparing_is_made_later():
    expected, run = experiment().run(), experiment()
    found = run.run(engine=with_slots(run, NoRoom()))  # positions and orders are ready all the same
    assert same(expected.server.state, found.server.state)


def test_a_closed_pool_holds_none():
    run, ahead = experiment(), BatchesAhead()
    engine = with_slots(run, ahead)
    engine.pool.prepare(run.trainer, [each.order for each in flat_tasks_of(run, [1, 2], 0)])
    assert len(ahead) == 2
    engine.close()
    assert len(ahead) == 0


def test_a_pack_gathers_for_runs_that_train_and_not_for_their_equals(monkeypatch):
    numbers = []

    def count(trainer, orders):
        numbers.append(len(orders))
        return gather_batches(trainer, orders)

    # A pack makes its pool itself, so that there is no argument to count with.
    monkeypatch.setattr("fedwidth.engines.slots.batches.gather_batches", count)
    changes = ["devices.capacities=a1", "slots=2"]
    first = experiment(*changes)
    runs = [first, *(experiment(*changes, f"method.name={name}", data=first.data) for name in ("heterofl", "fedavg"))]
    run_in_lockstep(runs)
    assert sum(numbers) == 4 * 5  # four rounds of five clients, once for all three
