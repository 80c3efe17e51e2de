"""What only a GPU can show; skipped where there is none."""

from dataclasses import replace

import pytest
import torch

import fedwidth
from fedwidth.config import read_settings
from fedwidth.experiment import Experiment
from fedwidth.models import build, example_inputs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

OVERRIDES = ["rounds=4", "evaluation.every=4", "device=cuda", "precision=float32", "devices.dynamic=true"]


def quickstart(*changes, **fields):
    return replace(read_settings("quickstart", [*OVERRIDES, *changes]).main, **fields)


@pytest.mark.parametrize("name", sorted(fedwidth.methods()))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_extract_and_merge_are_exact_on_the_device(name, dtype):
    model = build("preresnet18", widths=[16, 16, 32, 32])
    plan = fedwidth.trace(model, example_inputs("preresnet18"))
    state = {n: t.to("cuda", dtype) if t.is_floating_point() else t.cuda() for n, t in fedwidth.state_of(model).items()}
    method = fedwidth.method(name)
    updates = []
    for task in method.assign(plan, list(enumerate((1.0, 0.5, 0.25, 0.25))), round=7, seed=1):
        sub = fedwidth.extract(state, plan, task.index)
        host = fedwidth.extract({n: t.cpu() for n, t in state.items()}, plan, task.index)
        assert all(torch.equal(sub[n].cpu(), host[n]) for n in sub)
        updates.append((sub, task.index, 0.3 + task.client))
    new = fedwidth.merge(state, updates, plan)
    assert all(torch.equal(new[n], state[n]) and new[n].is_cuda for n in state)


def test_a_model_on_the_device_is_traced_there():
    model = build("cnn", data_shape=(1, 8, 8)).cuda()
    inputs = example_inputs("cnn", data_shape=(1, 8, 8))[0].cuda()
    plan = fedwidth.trace(model, inputs)
    index = fedwidth.method("fedrolex").select(plan, capacity=0.5, round=3)
    assert fedwidth.narrow(model, plan, index)(inputs).is_cuda


@pytest.mark.parametrize("method", ["fedrolex", "heterofl", "feddropout", "fedbrb"])
def test_the_cuda_engine_agrees_with_the_serial_one(method):
    settings = quickstart(f"method.name={method}")
    one = Experiment(replace(settings, engine="serial")).run().server.state
    many = Experiment(replace(settings, engine="cuda")).run().server.state
    assert all(torch.allclose(one[n].double(), many[n].double(), atol=2e-4) for n in one)


def test_the_cuda_engine_repeats_bit_for_bit_and_slots_change_nothing():
    states = [Experiment(quickstart(engine="cuda", slots=slots)).run().server.state for slots in (4, 4, 1)]
    for other in states[1:]:
        assert all(torch.equal(states[0][n], other[n]) for n in other)
