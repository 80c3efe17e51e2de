"""What training gives, to the last bit: digests of the state after six rounds of the quick start.

They were recorded before the local step, the sums and the methods were taken apart, and no change of the design may
change one. Arithmetic differs between processors: where a few steps written with PyTorch alone give other bits than
on the machine they were recorded on, nothing can be compared, and the tests are skipped.
"""

from __future__ import annotations

import hashlib
from functools import cache

import pytest
import torch
from torch import nn

from fedwidth.config.read import read_settings
from fedwidth.experiment import Experiment
from fedwidth.run.lockstep import run_in_lockstep as run_together

REFERENCE = "be177a6706c67eb3"

METHODS = {
    "fedavg": "a69ca71d1ca31dbb",
    "fedbrb": "683da1259e7ac99d",
    "fedcover": "67c99c25d498ef19",
    "feddropout": "d99f2a3244e46a65",
    "fedminoccurances": "848d95fa6ef705d0",
    "fedrolex": "4ced13d9483b74d6",
    "fedstack": "c871e592903f97cc",
    "fjord": "00b138fb6f82ed92",
    "heterofl": "eaf624c3fd980d21",
}

ENGINES = {
    "processes": "4ced13d9483b74d6",
    "vectorised": "c0288fc6919dbd60",
    "cuda": "dcf5b1565b28c441",
    "adam": "8c16bea91b51633f",
    "adamw": "7a15e52b9b6d2fcc",
    "packed vectorised": ["955c300dd5e649fd", "ce725f8d4ff1c896", "a622ff607e4b2fe1"],
    "packed cuda": ["dcf5b1565b28c441", "222773bbfe031f61", "57336a5be160976d"],
}


def digest(tensors):
    """Of names and bytes, in the order of names."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


@cache
def reference():
    """Three steps of a small convolutional network, without a line of fedwidth."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(
                *[nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)],
                *[nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)],
            ).to(memory_format=torch.channels_last)
            inputs, targets = torch.randn(16, 1, 8, 8), torch.randint(0, 10, (16,))
            optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
            for _ in range(3):
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimiser.step()
    finally:
        torch.set_num_threads(threads)
    return digest(dict(model.named_parameters()))


@pytest.fixture(autouse=True)
def _same_arithmetic():
    if reference() != REFERENCE:
        pytest.skip(f"this machine's arithmetic gives {reference()} where {REFERENCE} was recorded")


def settings_of(*changes):
    """Six rounds of the quick start, evaluated once."""
    few = ["rounds=6", "evaluation.every=6", "evaluation.capacities=[]", "evaluation.local=false"]
    return read_settings("quickstart", [*few, *changes], only="fedrolex").main


def state_after(*changes):
    return Experiment(settings_of(*changes)).run().server.state


@pytest.mark.parametrize("name", METHODS)
def test_every_method_one_client_at_a_time(name):
    assert digest(state_after(f"method.name={name}", "engine=serial")) == METHODS[name]


@pytest.mark.parametrize("engine", ["processes", "vectorised", "cuda"])
def test_one_run_per_engine(engine):
    assert digest(state_after(f"engine={engine}", "workers=2")) == ENGINES[engine]


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_other_optimisers(optimiser):
    found = state_after(f"training.optimiser={optimiser}", "training.lr=0.01", "engine=cuda")
    assert digest(found) == ENGINES[optimiser]


@pytest.mark.parametrize("engine", ["vectorised", "cuda"])
def test_packed_runs(engine):
    names = ["fedrolex", "heterofl", "fedbrb"]
    experiments = [Experiment(settings_of(f"method.name={name}", f"engine={engine}")) for name in names]
    for experiment in experiments[1:]:
        experiment.data = experiment.trainer.data = experiments[0].data
    found = [digest(result.server.state) for result in run_together(experiments)]
    assert found == ENGINES[f"packed {engine}"]


def test_ray_with_one_client_a_parcel_gives_the_bits_of_the_serial_engine():
    pytest.importorskip("ray", reason="Ray is not installed here: see `make test-ray`")
    assert digest(state_after("engine=ray", "ray.engine=serial")) == METHODS["fedrolex"]
