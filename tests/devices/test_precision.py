"""What a device computes in, in everything that is said of it: its memory, counted by hand, and its seconds."""

import json
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import fedwidth
from fedwidth.cli.entry import run_command
from fedwidth.config.read import read_settings
from fedwidth.core.narrow import skeleton
from fedwidth.devices import peak as peaks
from fedwidth.devices.fit import fit
from fedwidth.devices.memory import cross_entropy, training_memory
from fedwidth.devices.peak import WORKSPACE, Living, peak_of_step
from fedwidth.devices.workspace import LIBRARY, PROGRAM, lstm_workspace, row
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.models import build
from fedwidth.objectives.played import step_memory
from small_runs import small

INPUTS = torch.zeros(2, 100)


def mlp():
    return nn.Sequential(nn.Linear(100, 1000), nn.ReLU(), nn.Linear(1000, 10))


def test_the_peak_of_a_step_in_half_precision_is_what_can_be_counted_by_hand():
    # Batches of 50. At the end of the backward pass there are the inputs (50 x 100), the gradient of the first layer's
    # weight (1000 x 100) as it was computed and in single precision, that of its bias in half precision, and the
    # gradients of the second layer (10 x 1000 + 10). oneDNN has written five programs: for the products of two layers,
    # for the gradients of their weights, and for that of what the second one reads.
    found = peak_of_step(mlp(), INPUTS, 50, cross_entropy, precision="bf16")
    assert found.gradients == 4 * (100 * 1000 + 1000 + 10_010)
    assert found.kept == LIBRARY + 5 * PROGRAM
    tensors = 4 * 50 * 100 + (2 + 4) * 100 * 1000 + 2 * 1000 + 4 * 10_010
    assert found.step - found.kept == pytest.approx(WORKSPACE * tensors, rel=0.001)
    assert peak_of_step(mlp(), INPUTS, 50, cross_entropy).kept == 0


def test_equal_products_share_a_program_and_small_ones_have_none():
    wide, small = torch.zeros(32, 64).bfloat16(), torch.zeros(16, 16).bfloat16()
    with FakeTensorMode(allow_non_fake_inputs=True), Living() as living:
        for one, other in ((wide, wide.t()), (wide, wide.t()), (small, small), (wide.float(), wide.float().t())):
            torch.mm(one, other)
        assert living.kept == PROGRAM
        torch.mm(wide.t(), wide)
        assert living.kept == 2 * PROGRAM


def test_what_is_added_in_two_precisions_is_copied_for_as_long():
    half, single = torch.zeros(1000).bfloat16(), torch.zeros(1000)
    with Living() as living:
        made = half + single
    assert (living.bytes, living.peak) == (made.nbytes, made.nbytes + 4 * 1000)


def test_one_number_in_another_precision_has_no_copy():
    half, factor = torch.zeros(1000).bfloat16(), torch.ones(())
    with Living() as living:
        made = half * factor
    assert (living.bytes, living.peak) == (made.nbytes, made.nbytes)


def test_an_lstm_in_half_precision_keeps_a_row_of_every_step_in_single_precision():
    steps, samples, inputs, hidden = 20, 30, 40, 50
    kept = 2 * samples * (4 * steps * hidden + (steps + 1) * row(hidden))
    whole = 2 * lstm_workspace(torch.Size((steps, samples, inputs)), hidden)
    found = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.mkldnn_rnn_layer_backward.default:
                found.append(peaks.workspace_of(func, args).passing)
            return func(*args, **(kwargs or {}))

    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no LSTM in half precision")
    layer, given = nn.LSTM(inputs, hidden), torch.randn(steps, samples, inputs)
    with Watch():
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            loss = layer(given)[0].sum()
        loss.backward()
    copies = 2 * 2 * 4 * hidden * (inputs + hidden + 2)
    assert found == [whole - kept + copies + 2 * samples * (steps + 1) * row(hidden)]


def test_a_gpu_is_asked_about_the_same_precision(monkeypatch):
    asked, played = [], []
    monkeypatch.setattr(peaks, "asked", lambda device, precision: asked.append(precision) or nullcontext())
    monkeypatch.setattr(peaks, "_play", lambda *_, precision, **__: played.append(precision))
    peak_of_step(mlp(), INPUTS, 50, cross_entropy, device="cuda:0", precision="bf16")
    assert asked == played == ["bf16"]


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
