"""Models that keep something, draw by themselves or write into what they are given: alike on every engine."""

import random
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine_models import (
    Averages,
    AveragesAnew,
    DrawsInNumpy,
    DrawsInPython,
    Grows,
    Scales,
    ScalesInPlace,
    Steps,
    StepsInAttribute,
    StepsInTensor,
    own,
)
from fedwidth.errors import FellBack, UpdateError
from fedwidth.experiment import Experiment
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.settings import DataSettings, DeviceSettings, MethodSettings, TrainingSettings
from small_runs import same

ENGINES = ["serial", "processes", "cuda", "vectorised", "auto"]
"""On a processor: slots run there without graphs."""
KEEPS = {AveragesAnew: "mean", Steps: "taken", StepsInAttribute: "taken", StepsInTensor: "taken"}


def started(model, engine, **changes):
    """A run of two rounds and several steps; which of the two widths a client has differs."""
    torch.manual_seed(5)
    training = TrainingSettings(epochs=2, batch_size=4, lr=0.1)
    devices = DeviceSettings("a1-b1", per_round=3, dynamic=True)
    return own(model(), rounds=2, engine=engine, devices=devices, training=training, **changes)


def run(model, engine, **changes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FellBack)
        return started(model, engine, **changes).run()


def agree(one, other):
    """Bit for bit where clients train one at a time, which those do that a stack cannot hold."""
    assert same(one.server.state, other.server.state)
    assert one.summary["global_loss"] == other.summary["global_loss"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_new_tensor_in_place_of_a_buffer_is_its_value(engine):
    expected = run(Averages, "serial")
    assert expected.server.state["mean"].abs().min() > 0
    found = run(AveragesAnew, engine)
    for name, tensor in expected.server.state.items():
        torch.testing.assert_close(found.server.state[name], tensor, rtol=0, atol=1e-6)


def test_a_buffer_keeps_its_shape():
    for engine in ("serial", "cuda"):
        with pytest.raises(UpdateError, match=r"gave the buffer 'mean' the shape \[1\]: it must stay \[(4|8)\]"):
            run(Grows, engine)


@pytest.mark.parametrize("model", [*KEEPS, DrawsInPython, DrawsInNumpy])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_client_begins_and_draws_alike(model, engine):
    expected = run(model, "serial")
    if engine == "cuda":  # which sums products in another order
        found = run(model, engine)
        for name, tensor in expected.server.state.items():
            torch.testing.assert_close(found.server.state[name], tensor, rtol=0, atol=1e-6)
    else:
        for workers in (1, 2) if engine == "processes" else (0,):
            agree(run(model, engine, workers=workers), expected)


def test_slots_leave_nothing_behind_in_narrower_models():
    states = [
        run(StepsInAttribute, engine, method=MethodSettings("fjord"), data=DataSettings(clients=8)).server.state
        for engine in ("serial", "cuda")
    ]
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=0, atol=1e-6)


@pytest.mark.parametrize("model", [DrawsInPython, DrawsInNumpy])
def test_runs_that_draw_are_evaluated_in_a_pack_as_alone(model, tmp_path):
    alone, begun = run(model, "cuda"), started(model, "cuda")
    other = Experiment(replace(begun.settings, seed=5), model=begun.model, data=begun.data)
    packed = run_in_lockstep([begun, other], [tmp_path / "a", tmp_path / "b"])
    assert packed[0].summary["global_loss"] == alone.summary["global_loss"]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        *((model, f"its '{name}' changes in every step") for model, name in KEEPS.items()),
        *((model, "it draws at random on the processor") for model in (DrawsInPython, DrawsInNumpy)),
    ],
)
def test_stacks_say_why_they_cannot_hold_such_a_model(model, reason):
    with pytest.warns(FellBack, match=f"{reason}, and stacked clients take their steps together"):
        started(model, "vectorised").run()


@pytest.mark.parametrize("engine", ["serial", "cuda"])
@pytest.mark.parametrize("model", [DrawsInPython, DrawsInNumpy])
def test_the_callers_generators_are_not_disturbed(model, engine):
    begun = started(model, engine)
    random.seed(3)
    np.random.seed(3)
    np.random.randn()  # one of two is still held
    expected = random.random(), np.random.randn(), np.random.rand()
    random.seed(3)
    np.random.seed(3)
    np.random.randn()
    begun.run()
    assert (random.random(), np.random.randn(), np.random.rand()) == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_that_writes_into_its_inputs_leaves_the_data_alone(engine):
    expected, begun = run(Scales, engine), started(ScalesInPlace, engine)
    fresh = started(Scales, engine).data
    found = begun.run()
    for split in ("train", "test"):
        assert torch.equal(getattr(begun.data, split).inputs, getattr(fresh, split).inputs)
    agree(found, expected)
