"""Worker processes: their number changes no bit, and one that dies is replaced."""

import multiprocessing
import os
import shutil
import signal
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import SimpleNamespace

import pytest

from engine_models import Dies, Holds, Looks, own
from fedwidth.engines import ProcessEngine, SerialEngine, choose_engine, make_engine
from fedwidth.engines.processes.engine import start_pool
from fedwidth.engines.processes.shared_memory import SHARED_MEMORY, count_shared
from fedwidth.engines.processes.startup import startup_arguments, why_not_share
from fedwidth.engines.processes.worker import start_worker
from fedwidth.errors import ClientError, OptionError, UpdateError
from fedwidth.experiment import Experiment
from fedwidth.methods import Reference
from fedwidth.settings import TrainingSettings
from small_runs import contents, same, small

CNN = ("model.name=cnn", "model.options={widths=[4, 4]}")


@pytest.mark.parametrize(
    "changes",
    [
        (*CNN, "server.weighting=samples", "server.optimiser=fedadam", "server.lr=0.1"),
        ("method.name=fedbrb", "evaluation.capacities=[0.5]"),  # an index per tensor, not per group
        ("method.name=fedminoccurances", "devices.dynamic=true"),
    ],
    ids=["fedrolex", "fedbrb", "fedminoccurances"],
)
def test_the_number_of_workers_changes_no_bit(tmp_path, changes):
    places = {"serial": ("engine=serial",)}
    places |= {f"workers-{n}": ("engine=processes", f"workers={n}") for n in (1, 2)}
    for name, engine in places.items():
        Experiment(small(*changes, *engine)).run(tmp_path / name)
    serial = contents(tmp_path / "serial")
    assert contents(tmp_path / "workers-1") == serial
    assert contents(tmp_path / "workers-2") == serial


def sums_of(experiment, engine, round=0):
    tasks = experiment.method.assign(experiment.plan, experiment.cohort(round), round, None, 1)
    sums, report = engine.run(experiment.first_state, tasks, round)
    return [(cohort.index.key, cohort.mean, cohort.weight) for cohort in sums], report


def agree(one, other):
    return len(one) == len(other) and all(
        a[0] == b[0] and same(a[1], b[1]) and str(a[2]) == str(b[2]) for a, b in zip(one, other, strict=True)
    )


def test_more_clients_than_are_sent_at_once():
    """Sums and reports are in task order, also where two tasks are sent at a time."""
    experiment = Experiment(small("method.name=feddropout", "devices.per_round=6", "engine=processes", "workers=2"))
    engine = ProcessEngine(experiment.trainer, 2, tasks_ahead=1)
    try:
        found, report = sums_of(experiment, engine)
    finally:
        engine.close()
    expected, expected_report = sums_of(experiment, SerialEngine(experiment.trainer))
    assert agree(found, expected)
    assert report == expected_report


def test_a_worker_that_dies_is_replaced():
    experiment = Experiment(small("engine=processes", "workers=2"))
    pools = []

    def start(trainer, workers):
        pools.append(start_pool(trainer, workers))
        return pools[-1]

    engine = ProcessEngine(experiment.trainer, 2, start_pool=start)
    try:
        before, _ = sums_of(experiment, engine)
        os.kill(pools[0].submit(os.getpid).result(), signal.SIGKILL)
        wait_until_broken(pools[0])  # or the other worker might do all of the round
        with pytest.warns(UserWarning, match="round 0, client .* a worker process died and is replaced"):
            again, _ = sums_of(experiment, engine)
    finally:
        engine.close()
    assert agree(before, again)
    assert len(pools) == 2


def wait_until_broken(pool):
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        try:
            pool.submit(os.getpid).result()
        except BrokenProcessPool:
            return
        time.sleep(0.01)
    raise TimeoutError


def test_a_worker_that_dies_in_the_middle_of_a_round_is_replaced(tmp_path):
    """The first client is counted already, the second kills its worker: neither may count twice or be missing."""
    mark, model = tmp_path / "died", Dies()
    expected = own(model, engine="serial").run()
    mark.touch()
    model.mark, model.step = str(mark), 2
    with pytest.warns(UserWarning, match="a worker process died"):
        found = own(model, engine="processes", workers=1).run()
    assert not mark.exists(), "nobody died"
    assert same(expected.server.state, found.server.state)
    assert expected.metrics[-1]["train_loss"] == found.metrics[-1]["train_loss"]


class Dead(Executor):
    """A pool whose workers die over every task."""

    def submit(self, call, *arguments):
        future = Future()
        future.set_exception(BrokenProcessPool("gone"))
        return future


def test_workers_that_die_again_and_again_end_the_run():
    experiment = own(Looks())
    engine = ProcessEngine(experiment.trainer, 1, start_pool=lambda trainer, workers: Dead())
    expected = r"round 0, client \d+, capacity 1, stage train .* died 3 times .* engine = 'serial'"
    with pytest.warns(UserWarning, match="died and is replaced"), pytest.raises(ClientError, match=expected):
        sums_of(experiment, engine)


def test_a_refused_update_is_one_sentence_also_from_a_worker():
    with pytest.raises(UpdateError, match=r"client \d+ .* not finite"):
        Experiment(small("training.lr=1e30", "training.clip=0", "engine=processes", "workers=2")).run()


HEAVY = {"rounds": 10**6, "training": TrainingSettings(batch_size=20_000, epochs=300_000)}
"""So large a step, a round and a run that workers would pay; nobody trains it."""


def test_a_model_that_cannot_be_sent():
    with pytest.raises(OptionError, match="cannot be sent to worker processes .* use engine = 'serial'"):
        own(Holds(), engine="processes").run()
    assert choose_engine(own(Looks(), engine="auto", workers=2, **HEAVY).trainer).name == "processes"
    found = choose_engine(own(Holds(), engine="auto", workers=2, **HEAVY).trainer)  # auto finds another way
    assert (found.name, "cannot be sent" in found.reason) == ("serial", True)


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="this system sets shared memory no limit of its own")
def test_shared_memory_that_is_too_small(monkeypatch):
    # 40 inputs of 6 numbers and 40 labels, for training and for testing the same ones; the model; who has which sample.
    experiment = own(Looks(), engine="processes", workers=2)
    shares = (experiment.partition.train, experiment.partition.test)
    numbers = {t.untyped_storage().data_ptr(): t.numel() * 8 for s in shares for t in (s.samples, s.offsets)}
    least = 40 * 6 * 4 + 40 * 8 + (6 * 8 + 8 + 8 * 2 + 2) * 4
    needed = count_shared(startup_arguments(experiment.trainer))
    assert least < needed <= least + 2 * sum(numbers.values()) + 2 * 40 * 8

    def leave_free(size):
        """The system's word for it: there is no other way to have so little shared memory."""
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=size))

    leave_free(needed - 1)
    with pytest.raises(OptionError, match=r"take 0.0 MiB .* /dev/shm has 0.0 MiB free; use engine = 'serial'$"):
        experiment.run()
    found = choose_engine(own(Looks(), engine="auto", workers=2, **HEAVY).trainer)
    assert (found.name, "of shared memory" in found.reason) == ("serial", True)
    leave_free(needed)
    assert experiment.run().summary["rounds"] == 1
    leave_free(0)  # everything is there already
    assert count_shared(startup_arguments(experiment.trainer)) == 0
    assert why_not_share(experiment.trainer) is None


def test_no_more_workers_than_clients():
    trainer = Experiment(small("engine=processes", "workers=64")).trainer
    assert make_engine(trainer).workers == 3


def test_a_worker_that_cannot_start_says_why():
    """Its method cannot be found there: the cause is named, not that a process died."""

    def broken(trainer, workers):
        *others, _ = startup_arguments(trainer)
        arguments = (*others, Reference("nowhere:METHOD"))
        context = multiprocessing.get_context("forkserver")
        return ProcessPoolExecutor(workers, mp_context=context, initializer=start_worker, initargs=arguments)

    experiment = Experiment(small("engine=processes", "workers=1"))
    engine = ProcessEngine(experiment.trainer, 1, start_pool=broken)
    with pytest.raises(ClientError, match="worker process could not start: OptionError: method 'nowhere:METHOD'"):
        sums_of(experiment, engine)
    engine.close()
