"""Between the training of a round and its average: who waits for whom, what is held meanwhile, what is refused."""

import gc
import subprocess
import sys
import weakref
from itertools import islice

import pytest

from fedwidth.config.read import read_settings
from fedwidth.engines import make_engine
from fedwidth.engines.faults import error_context
from fedwidth.engines.flat.pool import wait_for_all
from fedwidth.engines.flat.sums import FlatSums
from fedwidth.errors import ClientError, UpdateError
from fedwidth.experiment import Experiment
from small_runs import same

CHANGES = ["rounds=3", "evaluation.every=3", "devices.dynamic=true", "training.batch_size=20", "data.clients=12"]
CHANGES += ["model.options={widths=[4,8]}", "devices.capacities=a1-b1-c1", "training.steps=2"]


def experiment(engine, *changes):
    return Experiment(read_settings("quickstart", [*CHANGES, f"engine={engine}", *changes]).main)


def refused():
    yield 1
    raise UpdateError("not finite")


def test_what_is_refused_behind_the_last_result_raises():
    trained = refused()
    assert list(islice(trained, 1)) == [1]
    with pytest.raises(UpdateError):
        wait_for_all(trained)


def test_it_is_refused_where_python_leaves_assertions_out():
    script = (
        "from fedwidth.engines.flat.pool import wait_for_all\n"
        "def trained():\n    raise SystemExit('refused')\n    yield\n"
        "wait_for_all(trained())"
    )
    done = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "refused"


@pytest.mark.parametrize("engine", ["cuda", "vectorised"])
def test_nothing_holds_the_sub_models_once_their_results_are_taken(engine):
    run = experiment(engine, "slots=2")
    made = make_engine(run.trainer)
    tasks = run.method.assign(run.plan, [(client, 1.0 if client % 2 else 0.5) for client in range(8)], 0)
    sums, flat_tasks = made.start_round(run.first_state, tasks, 0)
    number, starts = len(flat_tasks), {weakref.ref(flat_task.start) for flat_task in flat_tasks}
    trained = made.pool.train(flat_tasks)
    del flat_tasks
    made.add_updates(sums, islice(trained, number))
    gc.collect()
    assert not [start for start in starts if start() is not None]
    wait_for_all(trained)


@pytest.mark.parametrize("engine", ["cuda", "vectorised"])
@pytest.mark.parametrize("method", ["fedrolex", "feddropout"])
def test_averaging_beforehand_changes_no_bit(engine, method, monkeypatch):
    averaged = []
    real = FlatSums.average_beforehand

    def note(sums, state):
        real(sums, state)
        averaged.append(sums.is_averaged(state))

    monkeypatch.setattr(FlatSums, "average_beforehand", note)
    before = experiment(engine, f"method.name={method}").run()
    assert averaged == [False, True, True]  # the first state is not one vector yet
    monkeypatch.setattr(FlatSums, "average_beforehand", lambda *_: None)
    after = experiment(engine, f"method.name={method}").run()
    assert same(before.server.state, after.server.state)


def test_an_average_made_beforehand_is_not_taken_for_other_sums():
    run = experiment("cuda")
    made = make_engine(run.trainer)
    tasks = run.method.assign(run.plan, [(client, 0.5 if client % 2 else 1.0) for client in range(4)], 0)
    state = made.cutter.flatten(run.first_state)
    sums, _ = made.run(state, tasks, 0)
    assert len(sums) == 2
    assert sums.is_averaged(state)
    both, one = (run.method.aggregate(state, some, run.plan) for some in (sums, sums[:1]))
    assert both is run.method.aggregate(state, sums, run.plan)
    assert not same(both, one)
    again = run.method.aggregate(dict(state), sums, run.plan)  # another state with the same values
    assert again is not both
    assert same(both, again)


@pytest.mark.parametrize(("message", "late"), [("CUDA error: device-side assert", True), ("out of luck", False)])
def test_an_error_the_device_reports_late_may_be_anothers(message, late):
    run = experiment("serial")
    (task,) = run.method.assign(run.plan, [(7, 1.0)], 0)
    where = r"^round 4, client 7, capacity 1, stage add: RuntimeError"
    with pytest.raises(ClientError, match=where) as raised, error_context("add", 4, task):
        raise RuntimeError(message)
    assert ("it may have been another client of this round" in str(raised.value)) == late
