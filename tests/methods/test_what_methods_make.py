"""States that the functions of a method make: refused in its name where they cannot be trained on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedwidth.errors import StateError
from fedwidth.experiment import Experiment
from fedwidth.methods import method
from fedwidth.run.checkpoint import NAME, read_state
from small_runs import small

CHANGES = ["rounds=2", "checkpoint_every=1", "model.options={hidden=[4]}"]


def own(**functions):
    return replace(method("fedavg"), name="mine", **functions)


def spoilt(state):
    return {name: tensor * torch.nan if name == "classifier.bias" else tensor for name, tensor in state.items()}


def test_a_first_state_that_is_not_finite(tmp_path):
    with pytest.raises(StateError, match=r"^start of mine gives 'classifier\.bias' a value that is not finite"):
        Experiment(small(*CHANGES), method=own(start=lambda beginning: spoilt(beginning.state)))


def test_a_model_that_is_not_finite_is_not_blamed_on_the_method():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 10))
    model[1].bias.data[2] = torch.inf
    with pytest.raises(StateError, match=r"^the model gives '1\.bias' a value that is not finite"):
        Experiment(small(), model=model, method=own(start=lambda beginning: dict(beginning.state)))


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_close_that_is_not_finite_keeps_the_round_before(engine, tmp_path):
    """In the round after it, a client would be blamed."""

    def close(closing):
        return spoilt(closing.average()) if closing.round == 1 else closing.average()

    experiment = Experiment(small(*CHANGES, f"engine={engine}"), method=own(close=close))
    with pytest.raises(StateError, match=r"^round 1: close of mine gives 'classifier\.bias' a value that is not"):
        experiment.run(tmp_path)
    assert all(tensor.isfinite().all() for tensor in read_state(tmp_path / NAME).values())
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float64])
@pytest.mark.parametrize("function", ["start", "close"])
def test_a_state_of_another_dtype(function, dtype, engine):
    def change(at):
        return {name: tensor.to(dtype) for name, tensor in at.state.items()}

    with pytest.raises(StateError, match=f"^{function} of mine: '.*' is {dtype} on cpu, but must stay torch.float32"):
        Experiment(small(*CHANGES, f"engine={engine}"), method=own(**{function: change})).run()
