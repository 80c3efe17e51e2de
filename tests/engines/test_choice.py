"""Which engine `auto` takes, and why."""

from dataclasses import replace

import pytest
import torch

from engine_models import Looks, Renorms, own
from fedwidth.cli.entry import main
from fedwidth.engines import ProcessEngine, SerialEngine, choose_engine, limits, make_engine
from fedwidth.experiment import Experiment
from small_runs import small, write_recipe

UNEQUAL = ("data.partition=dirichlet", "data.partition_options={alpha=0.1}", "data.clients=30")
CNN = ("model.name=cnn", "model.options={widths=[4, 4]}")
LARGE_STEP = "training.batch_size=100000"


def test_auto_takes_workers_for_heavy_rounds_only():
    light = Experiment(small("engine=auto", "workers=2", LARGE_STEP)).trainer
    assert isinstance(make_engine(light), SerialEngine)
    heavy = Experiment(small("engine=auto", "workers=2", LARGE_STEP, "training.epochs=10000", "rounds=1000"))
    made = make_engine(heavy.trainer)
    assert isinstance(made, ProcessEngine)
    assert made.workers == 2


@pytest.mark.parametrize(
    ("changes", "name", "reason"),
    [
        ((), "vectorised", "a step of a client is small"),
        (("devices.per_round=1",), "serial", "one client a round"),
        ((LARGE_STEP,), "serial", "large enough to train alone"),
        (("model.options={hidden=[20000]}", "training.batch_size=1", "devices.per_round=6"), "serial", "too many"),
        ((*UNEQUAL, "training.batch_size=5"), "serial", "twice as many steps"),
        (("method.name=fjord",), "serial", "draw a width at every step"),
        (("engine=serial",), "serial", "as set"),
    ],
)
def test_what_auto_takes_and_why(changes, name, reason):
    for workers in (1, 2, 16):  # the choice between engines that differ in rounding must not depend on the machine
        found = choose_engine(Experiment(small("engine=auto", f"workers={workers}", *changes)).trainer)
        assert found.name == name
        assert reason in found.reason


@pytest.mark.parametrize(
    ("changes", "name", "reason"),
    [
        (("devices.per_round=6", "devices.capacities=a0-c1"), "vectorised", "a step of a client is small"),
        (("devices.per_round=5", "devices.capacities=a0-c1"), "cuda", "5 clients a round of 1 width are too few"),
        (("devices.per_round=6", "devices.capacities=a1-c1"), "cuda", "6 clients a round of 2 widths are too few"),
        (("devices.per_round=6", "training.batch_size=10000000"), "cuda", "side by side on the GPU; a step"),
    ],
)
def test_auto_on_a_gpu_stacks_where_there_are_enough_of_one_width(monkeypatch, changes, name, reason):
    monkeypatch.setitem(limits.TRIALS, "vectorised", lambda _: None)  # all the rest needs no GPU
    trainer = Experiment(small("engine=auto", *changes)).trainer
    found = choose_engine(replace(trainer, device=torch.device("cuda")))
    assert found.name == name
    assert reason in found.reason


def test_auto_stacks_no_batch_norm_of_unequal_clients_and_no_model_that_cannot_be_stacked():
    norm = choose_engine(Experiment(small("engine=auto", *CNN, *UNEQUAL)).trainer)
    assert (norm.name, "batch norm" in norm.reason) == ("serial", True)
    renorms = choose_engine(own(Renorms(), engine="auto").trainer)
    assert (renorms.name, "one after the other" in renorms.reason) == ("serial", True)
    looks = choose_engine(own(Looks(), engine="auto").trainer)
    assert (looks.name, "cannot be stacked" in looks.reason) == ("serial", True)
    assert own(Looks(), engine="auto").run().summary["rounds"] == 1


def test_the_command_line_says_what_auto_took(tmp_path, capsys):
    for engine, said in (("auto", "engine: vectorised (a step of a client is small"), ("serial", None)):
        with pytest.raises(SystemExit, match="^0$"):
            main(["run", write_recipe(tmp_path), "--set", f"engine={engine}", "--out", str(tmp_path / engine)])
        found = capsys.readouterr().err
        assert said in found if said else "engine:" not in found
