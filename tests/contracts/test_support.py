"""The table of what trains what (docs/support.md): every yes trains, with the result of the serial engine.

Every method and every task is tried with every column; all pairs of them in `make test-slow`. Flower's column is tried
where Flower is installed (tests/flower/test_flower_support.py), Ray's with workers of this process, and some of it on a
real cluster (tests/engines/ray_cluster/test_ray_tasks.py).
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from pathlib import Path

import pytest
import torch
from engine_runs import WORKERS

from fedwidth.core.tensor_bytes import TensorBytes
from fedwidth.engines import ProcessEngine, make_engine
from fedwidth.engines.ray.engine import RayEngine
from fedwidth.engines.ray.worker_setup import WorkerSetup
from fedwidth.engines.serial import SerialEngine
from fedwidth.errors import FellBack
from fedwidth.experiment import Experiment
from fedwidth.methods import methods
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.training.round import run_round
from objective_runs import no_fallback, settings
from own_data import write_files
from played_cluster import PlayedCluster
from small_runs import same
from support_table import COLUMNS, PROPERTIES, SHORT, TASKS, pairs, run_of, support

ROOT = Path(__file__).parents[2]
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
"""Of engines that add up in another order, in single precision."""


@cache
def serial(method, task, *changes):
    """The state after the run with the serial engine."""
    return run_of(method, task, *changes).run().server.state


def alone(engine):
    def states(method, task):
        return [run_of(method, task, f"engine={engine}").run().server.state]

    return states


def in_processes(method, task):
    run = run_of(method, task)
    return [run.run(engine=ProcessEngine(run.trainer, WORKERS.number, start_pool=WORKERS.serve)).server.state]


def on_ray(method, task):
    run = run_of(method, task, "engine=ray", "ray.engine=serial")
    cluster = PlayedCluster({1.0: 2.0, 0.5: 1.0}, 2)
    engine = RayEngine(run.trainer, join=lambda settings: cluster, clock=cluster.clock)
    return [run.run(engine=engine).server.state]


def packed(engine):
    """Twice the same run, as one batch."""

    def states(method, task):
        first = run_of(method, task, f"engine={engine}")
        second = Experiment(first.settings, data=first.data)
        return [result.server.state for result in run_in_lockstep([first, second])]

    return states


def with_property(column):
    def states(method, task):
        with pytest.warns() if column == "secure sums" else nullcontext():  # of two clients each knows the other's
            return [run_of(method, task, *PROPERTIES[column][0]).run().server.state]

    return states


SHOWN = {
    "serial": alone("serial"),
    "processes": in_processes,
    "vectorised": alone("vectorised"),
    "cuda": alone("cuda"),
    "ray": on_ray,
    "vectorised --packed": packed("vectorised"),
    "cuda --packed": packed("cuda"),
    **{column: with_property(column) for column in PROPERTIES},
}
"""How a yes of each column is shown: by the states after the run, trained that way."""
ELSEWHERE = {
    "flower": "tests/flower/test_flower_support.py",
    "private": "tests/contracts/test_private_and_robust.py",
    "robust": "tests/contracts/test_private_and_robust.py",
}
"""Columns whose yes is shown by a file of their own."""
EXACT = {"serial", "processes", "ray"}
"""Columns whose result is the serial engine's bit for bit."""


def test_every_column_is_shown():
    assert SHOWN.keys() | ELSEWHERE.keys() == set(COLUMNS)
    for file in ELSEWHERE.values():
        assert "pairs(" in (ROOT / file).read_text(), f"{file} must go through the table"


def test_no_task_is_left_to_the_slow_tests_alone():
    for column in COLUMNS:
        tried = {task for method, task in pairs(every=False) if support(method, task)[column] is None}
        assert tried == TASKS.keys(), column


def trains_like_serial(method, task, column):
    if support(method, task)[column] is not None:
        return
    with no_fallback():
        found = SHOWN[column](method, task)
    expected = serial(method, task, *PROPERTIES.get(column, ((), ()))[1])
    for state in found:
        for name, tensor in expected.items():
            assert torch.allclose(tensor, state[name], **TOLERANCE), name
        assert column not in EXACT or same(expected, state)


@pytest.mark.parametrize("column", SHOWN)
@pytest.mark.parametrize(("method", "task"), pairs(every=False))
def test_a_yes_of_every_method_and_task(method, task, column):
    trains_like_serial(method, task, column)


@pytest.mark.slow
@pytest.mark.parametrize("column", SHOWN)
@pytest.mark.parametrize(("method", "task"), pairs(every=True))
def test_every_yes(method, task, column):
    trains_like_serial(method, task, column)


@pytest.mark.parametrize("engine", ["vectorised", "cuda"])
@pytest.mark.parametrize("method", sorted(methods()))
def test_where_a_flat_engine_says_no_one_client_trains_at_a_time(method, engine):
    task = "classification" if methods()[method].classes else "regression"
    if (reason := support(method, task)[engine]) is None:
        return
    with pytest.warns(FellBack, match=f"falls back to one client at a time: .*{reason}"):
        engine_made = make_engine(run_of(method, task, f"engine={engine}").trainer)
    assert isinstance(engine_made, SerialEngine)


def test_only_what_is_known_to_be_out_of_reach_is_refused():
    """A new reason belongs into the table, and into this test."""
    words = (
        "logits of classes",
        "something else at every step",
        "draw a width at every step",
        "what comes after it looks at more than its output",
        "no slices",
        "other parts than slices",
        "stay with the clients",
        "are sent or report more than a sub-model",
        "has no secure sums: its ",
        "trains adapters, which",
        "adapters need single updates",
        "let one factor rest",
        "its sub-models are no slices of the model, and are not compared",
        "closes a round otherwise than by averaging",
        "report more than their sub-models",
        "remembers of clients what no noise hides",
        "depends on who else takes part",
    )
    for method, task in pairs(every=True):
        for column, reason in support(method, task).items():
            assert reason is None or any(word in reason for word in words), (method, task, column, reason)
    assert all(support(method, "classification")["serial"] is None for method in methods())


@pytest.mark.parametrize("task", TASKS)
def test_rays_workers_get_what_the_driver_holds(task):
    """Of the data as bytes, of inputs and targets of any form; then a worker trains as the driver would."""
    run = run_of("fedrolex", task)
    setup = WorkerSetup.of(run.trainer)
    assert all(isinstance(each, TensorBytes) for each in (*setup.inputs, *setup.targets))
    assert same(*first_rounds(run, setup))


def test_rays_workers_read_what_is_read_as_needed(tmp_path):
    write_files(tmp_path)
    data = ["data.name=own_data:on_disk", f"data.root={tmp_path}", "data.cache=1", "model.name=own_objective:Plain"]
    run = Experiment(settings(*data, *SHORT))
    setup = WorkerSetup.of(run.trainer)
    assert (setup.inputs, setup.targets) == ([], [])
    assert same(*first_rounds(run, setup))


def first_rounds(run, setup):
    """The state after a round here, and after one in a worker that was set up so."""
    return [
        run_round(run.rounds, run.first_server(), run.cohort(0), SerialEngine(trainer))[0].state
        for trainer in (run.trainer, setup.trainer(torch.device("cpu")))
    ]
