"""Packed runs on a GPU give what they give one by one. Skipped where there is none."""

from contextlib import closing
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedwidth.config.build import split_data
from fedwidth.data import from_tensors
from fedwidth.engines.packed.kept_pools import KeptPools
from fedwidth.engines.stacks.stack import Stack
from fedwidth.experiment import Experiment
from fedwidth.models import build
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.settings import DataSettings, DeviceSettings, MethodSettings, Settings
from small_runs import same

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = "cuda"

TOLERANCE = 1e-10
"""In double precision. More models in a product may change the order of its sums, and batch norms over few samples blow
up roundings: on the CPU, the serial engine started one rounding away ends up to 1.4e-13 away from itself."""

MODELS = {
    "cnn": lambda seed: build("cnn", seed=seed, data_shape=(3, 8, 8), widths=[16, 32]),
    "preresnet18": lambda seed: build("preresnet18", seed=seed, widths=[16, 16, 32, 32]),
    "no norm": lambda _: nn.Sequential(  # the others are evaluated one by one
        *(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(32, 10),
    ),
    "dropout": lambda _: nn.Sequential(
        *(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(16 * 36, 10)),
    ),
}
EQUAL = DataSettings(clients=24)
UNEQUAL = DataSettings(clients=24, partition="dirichlet", partition_options={"alpha": 3.0})
TRAINING = replace(Settings().training, batch_size=4, lr=0.02)
VARIANTS = (
    {"seed": 1},
    {"seed": 2, "method": MethodSettings("heterofl")},
    {"seed": 3, "method": MethodSettings("fedminoccurances")},  # remembers the round before
    {"seed": 1, "method": MethodSettings("fedbrb"), "training": replace(TRAINING, lr=0.01), "rounds": 2},
)


def experiments(model, dtype, **changes):
    """Four runs of 24 clients: in a round of all 12 have half the width (8 channels) and 12 a quarter."""
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(240, 3, 8, 8, generator=draw, dtype=dtype)
    targets = torch.randint(0, 10, (240,), generator=draw)
    stored = data = from_tensors(inputs, targets, inputs, targets)
    common = Settings(
        rounds=3,
        device=DEVICE,
        precision="float32",
        data=EQUAL,
        devices=DeviceSettings("b1-c1", per_round=24),
        training=TRAINING,
    )
    found = []
    for variant in VARIANTS:
        settings = replace(common, **variant, **changes)
        torch.manual_seed(settings.seed)
        made, shares = MODELS[model](settings.seed).to(dtype), split_data(settings, stored)
        found.append(Experiment(settings, model=made, data=data, partition=shares))
        data = found[0].data  # runs of a pack share what is on the device
    return found


@pytest.mark.parametrize(
    ("model", "data"),
    [("cnn", EQUAL), ("preresnet18", EQUAL), ("no norm", UNEQUAL)],
    ids=["cnn", "preresnet18", "no norm"],
)
def test_in_stacks_up_to_roundings(model, data, monkeypatch):
    runs = experiments(model, torch.float64, engine="vectorised", data=data)
    single = [run.run() for run in runs]
    stacks, train = [], Stack.train
    # Runs in lockstep make their pool themselves, so that there is no argument to count with.
    monkeypatch.setattr(
        Stack,
        "train",
        lambda stack, starts, clients: stacks.append((stack.rows, len(starts))) or train(stack, starts, clients),
    )
    packed = run_in_lockstep(runs)
    assert (20, 20) in stacks, "clients of several runs fill a stack; those of one run do not"
    for run, one, other in zip(runs, single, packed, strict=True):
        assert worst(run.first_state, one.server.state) > 0.001, "this run trains nothing"
        assert worst(one.server.state, other.server.state) < TOLERANCE
        assert one.summary["global_accuracy"] == other.summary["global_accuracy"]
        assert one.summary["local_accuracy"] == other.summary["local_accuracy"]
        assert losses_of(one) == pytest.approx(losses_of(other), rel=TOLERANCE)


@pytest.mark.parametrize(("model", "data"), [("cnn", UNEQUAL), ("dropout", EQUAL)], ids=["cnn", "dropout"])
def test_in_slots_bit_for_bit(model, data):
    # Unequal shares have batches of 1, 2, 3 and 4: which of them a slot captures depends on whom it has trained before.
    devices = DeviceSettings("b1-c1", dynamic=True, per_round=6)
    runs = experiments(model, torch.float32, engine="cuda", slots=2, data=data, devices=devices)
    single = [run.run() for run in runs]
    with closing(KeptPools()) as pools:  # the second pack trains in the slots of the first
        packed = [run_in_lockstep(runs, pools=pools), run_in_lockstep(runs[::-1], pools=pools)[::-1]]
    for run, one, *others in zip(runs, single, *packed, strict=True):
        assert worst(run.first_state, one.server.state) > 0.001, "this run trains nothing"
        assert all(same(one.server.state, other.server.state) for other in others)
        assert all(losses_of(one) == losses_of(other) for other in others)


def losses_of(result):
    return [line["train_loss"] for line in result.metrics]


def worst(one, other):
    return max(float((one[n].double() - other[n].double()).abs().max()) for n in one)
