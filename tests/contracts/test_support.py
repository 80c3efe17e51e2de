"""The table of what trains what (docs/support.md): every yes trains with the result of the serial engine."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

from fedwidth.core.tensor_bytes import TensorBytes
from fedwidth.engines.ray.worker_setup import WorkerSetup
from fedwidth.engines.serial import SerialEngine
from fedwidth.engines.support import ENGINES
from fedwidth.errors import FellBack
from fedwidth.experiment import Experiment
from fedwidth.methods import methods
from fedwidth.training.rounds import run_round
from objective_runs import TASKS, settings, support
from own_data import write_files
from small_runs import same

SHORT = ["rounds=1", "data.clients=4", "devices.per_round=2", "training.epochs=1", "evaluation.capacities=[]"]


def experiment(method, task, *changes):
    return Experiment(settings(*TASKS[task], *SHORT, f"method.name={method}", *changes))


def trains_like_serial(method, task, engine):
    assert support(method, task)[engine] is None
    one = experiment(method, task).run().server.state
    with warnings.catch_warnings():
        warnings.simplefilter("error", FellBack)
        other = experiment(method, task, f"engine={engine}", "workers=2").run().server.state
    if engine == "processes":
        assert same(one, other)
    for name, tensor in one.items():
        assert torch.allclose(tensor, other[name], rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("engine", ["vectorised", "cuda"])
def test_every_task_on_flat_engines(task, engine):
    trains_like_serial("scaffold", task, engine)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "vectorised", "cuda"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", sorted(methods()))
def test_every_yes_of_the_table(method, task, engine):
    if support(method, task)[engine] is None:
        trains_like_serial(method, task, engine)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorised", "cuda"])
@pytest.mark.parametrize("method", sorted(methods()))
def test_where_an_engine_says_no_the_serial_one_trains(method, engine):
    reason = support(method, "regression")[engine]
    if reason is None or methods()[method].classes:
        return
    with pytest.warns(FellBack, match="falls back to one client at a time"):
        experiment(method, "regression", f"engine={engine}").run()


def test_only_what_is_known_to_be_out_of_reach_is_refused():
    """A new reason belongs into the table, and into this test."""
    words = ("logits of classes", "something else at every step", "no slices", "other parts than slices")
    for method in methods():
        for task in TASKS:
            for engine, reason in support(method, task).items():
                assert engine in ENGINES
                assert reason is None or any(word in reason for word in words), (method, task, engine, reason)
        assert support(method, "classification")["serial"] is None


@pytest.mark.parametrize("task", TASKS)
def test_rays_workers_get_what_the_driver_holds(task):
    """Of the data as bytes, of inputs and targets of any form; then a worker trains as the driver would."""
    run = experiment("fedrolex", task)
    setup = WorkerSetup.of(run.trainer)
    assert all(isinstance(each, TensorBytes) for each in (*setup.inputs, *setup.targets))
    there = setup.trainer(torch.device("cpu"))
    found = [
        run_round(run.rounds, run.first_server(), run.cohort(0), SerialEngine(trainer))[0].state
        for trainer in (run.trainer, there)
    ]
    assert same(*found)


def test_rays_workers_read_what_is_read_as_needed(tmp_path):
    write_files(tmp_path)
    data = ["data.name=own_data:on_disk", f"data.root={tmp_path}", "data.cache=1", "model.name=own_objective:Plain"]
    run = Experiment(settings(*data, *SHORT))
    setup = WorkerSetup.of(run.trainer)
    assert (setup.inputs, setup.targets) == ([], [])
    found = [
        run_round(run.rounds, run.first_server(), run.cohort(0), SerialEngine(trainer))[0].state
        for trainer in (run.trainer, setup.trainer(torch.device("cpu")))
    ]
    assert same(*found)


@pytest.mark.parametrize("task", ["regression", "segmentation", "tagging", "own objective"])
def test_flowers_devices_train_for_the_recipes_objective(task):
    """The trainer of a device, made of the recipe alone."""
    training = pytest.importorskip("fedwidth.flower.node.training")
    from fedwidth.config.write import settings_toml

    run = experiment("fedrolex", task)
    there = training.trainer_of(settings_toml(run.settings), "", 0, light=False)
    found = [
        run_round(
            run.rounds, run.first_server(), run.cohort(0), SerialEngine(replace(trainer, partition=run.partition))
        )[0].state
        for trainer in (run.trainer, there)
    ]
    assert same(*found)
