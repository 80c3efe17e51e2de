"""What a device computes in, in everything that is said of it: its memory and its seconds."""

import json

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.cli.entry import run_command
from fedwidth.config.read import read_settings
from fedwidth.core.narrow import skeleton
from fedwidth.devices.fit import fit
from fedwidth.devices.memory import training_memory
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.models import build
from fedwidth.objectives.played import step_memory
from small_runs import small

INPUTS = torch.zeros(2, 100)


def mlp():
    return nn.Sequential(nn.Linear(100, 1000), nn.ReLU(), nn.Linear(1000, 10))


def test_fit_and_the_command_and_budgets_give_the_same_width(capsys):
    """Half precision takes less memory of this model, so that a wider one fits."""
    model, example = build("mlp", data_shape=(1, 8, 8), hidden=[2048, 2048]), torch.zeros(2, 1, 8, 8)
    found = {
        precision: fit(model, example, memory="350MB", batch=4096, precision=precision, profiles=False)[0]
        for precision in ("float32", "tf32", "bf16")
    }
    assert found["float32"].capacity == found["tf32"].capacity < found["bf16"].capacity
    words = ["mlp", "--shape", "1x8x8", "--set", "hidden=[2048,2048]", "--memory", "350MB", "--batch", "4096"]
    assert run_command(["fit", *words, "--precision", "bf16", "--uniform", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["devices"]
    assert record["capacity"] == found["bf16"].capacity
    assert record["needs"]["memory"]["total"] == found["bf16"].needs.memory.total
    settings = read_settings(
        """
        precision = "bf16"
        model = { name = "mlp", options = { hidden = [2048, 2048] } }
        training.batch_size = 4096
        engine = "serial"
        devices.budgets = { phone = { memory = "350MB" } }
        """
    ).main
    assert Experiment(settings).capacities.values == (found["bf16"].capacity,)


def test_what_cocofl_chooses_by_is_in_the_precision_of_the_run():
    for precision in ("tf32", "bf16"):
        run = Experiment(small(f"precision={precision}", "model.options={hidden=[64]}", "training.batch_size=512"))
        module = skeleton(run.model, run.plan, {})
        found = step_memory(run.objective, run.data, run.settings)(module)
        assert found == training_memory(module, run.data.example(), batch=512, precision=precision)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_measured_steps_are_those_of_the_precision(precision):
    seen = []

    class Watched(nn.ReLU):
        def forward(self, x):
            seen.append(x.dtype)
            return super().forward(x)

    model = nn.Sequential(nn.Linear(100, 8), Watched(), nn.Linear(8, 10))
    fedwidth.fit(model, INPUTS, seconds=3600, samples=10, precision=precision, measure=True, profiles=False)
    assert set(seen[-4:]) == {torch.bfloat16 if precision == "bf16" else torch.float32}


def test_a_precision_that_there_is_not_is_one_line(capsys):
    with pytest.raises(OptionError, match="the precision must be one of float32, tf32, bf16, not 'half'"):
        fit(mlp(), INPUTS, upload="1MB", precision="half")
    assert run_command(["fit", "mlp", "--shape", "64", "--upload", "5MB", "--precision", "fp16"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "one of float32, tf32, bf16, not 'fp16'" in said
