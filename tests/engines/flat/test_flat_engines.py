"""Slots and stacks on the CPU (no graphs and streams there), against the serial engine in double precision.

`contracts/test_every_engine.py` has every method, model and optimiser; here clients lack classes and are measured.
"""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.config.read import read_settings
from fedwidth.engines import FlatEngine
from fedwidth.engines.slots.pool import SlotPool
from fedwidth.experiment import Experiment, build_model
from fedwidth.methods import method
from small_runs import same, small


@cache
def digits():
    """The digits in double precision."""
    data = fedwidth.data.load("digits")
    inputs = [data.transform(split.inputs).double() for split in (data.train, data.test)]
    return fedwidth.data.from_tensors(inputs[0], data.train.targets, inputs[1], data.test.targets, kind="images")


@cache
def run(engine, *changes):
    settings = read_settings("quickstart", [*changes, f"engine={engine}"]).main
    return Experiment(settings, model=build_model(settings, digits()).double(), data=digits()).run()


def worst(one, other):
    return max(float((one.server.state[n] - other.server.state[n]).abs().max()) for n in one.server.state)


@pytest.mark.parametrize("engine", ["cuda", "vectorised"])
@pytest.mark.parametrize(
    ("name", "optimiser", "lr"), [("fedrolex", "sgd", 0.1), ("fedbrb", "adam", 0.001), ("fedrolex", "adamw", 0.001)]
)
def test_it_agrees_with_the_serial_engine_in_double_precision(name, optimiser, lr, engine):
    changes = ["rounds=3", "evaluation.every=3", f"method.name={name}", f"training.optimiser={optimiser}"]
    changes += [f"training.lr={lr}", "devices.dynamic=true", "training.batch_size=20", "model.options={widths=[8,16]}"]
    one, many = (run(each, *changes, "training.steps=3") for each in ("serial", engine))
    assert worst(one, many) < 1e-7
    assert one.metrics[-1]["train_loss"] == pytest.approx(many.metrics[-1]["train_loss"], rel=1e-5)


@pytest.mark.parametrize("engine", ["cuda", "vectorised"])
@pytest.mark.parametrize("name", ["fedhm", "prism", "flanc"])
def test_parts_that_are_no_slices_agree_where_clients_lack_classes(name, engine):
    changes = ["rounds=3", "evaluation.every=3", f"method.name={name}", "training.batch_size=20", "training.steps=3"]
    changes += ["devices.dynamic=true", "model.options={widths=[8,16]}", "training.weight_decay=0.01"]
    one, many = (run(each, *changes) for each in ("serial", engine))
    assert worst(one, many) < 1e-10
    assert one.server.memory.keys() == many.server.memory.keys()
    for tensor in one.server.memory:
        torch.testing.assert_close(many.server.memory[tensor], one.server.memory[tensor], rtol=0, atol=1e-10)
    assert one.metrics[-1]["train_loss"] == pytest.approx(many.metrics[-1]["train_loss"], rel=1e-9)


def test_parameters_that_are_frozen_or_unused_stay_as_they_are():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = fedwidth.data.from_tensors(x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long())
    settings = read_settings("data.clients=4", ["rounds=3", "devices.per_round=3", "training.weight_decay=0.1"]).main
    for model, reason in ((PartlyFrozen(), None), (PartlyUsed(), "does not depend on 'idle'")):
        runs = {}
        for engine in ("serial", "cuda", "vectorised"):
            warned = engine == "vectorised" and reason
            with pytest.warns(UserWarning, match=reason) if warned else nullcontext():
                runs[engine] = Experiment(replace(settings, engine=engine), model=model.double(), data=data).run()
        state = runs["serial"].server.state
        still = model.state_dict()[model.still]
        for run in runs.values():
            assert torch.equal(run.server.state[model.still], still)
            assert all(torch.allclose(run.server.state[n], state[n], rtol=0, atol=1e-14) for n in state)


class PartlyFrozen(nn.Sequential):
    still = "0.weight"

    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        self[0].weight.requires_grad_(False)


class PartlyUsed(nn.Sequential):
    still = "idle"

    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        self.idle = nn.Parameter(torch.ones(3))


class NeverAhead(FlatEngine):
    """Is not told of the coming round."""

    def run(self, state, tasks, round, **_):
        return super().run(state, tasks, round)


@pytest.mark.parametrize("name", ["feddropout", "fedminoccurances"])  # the second must wait for what the round leaves
def test_choosing_beforehand_changes_no_bit_and_chooses_once(name):
    changes = ["rounds=4", "evaluation.every=4", "devices.dynamic=true", "training.steps=2", "slots=4"]
    changes += ["model.options={widths=[4,8]}", "devices.capacities=a1-b1", "engine=cuda"]
    settings = read_settings("quickstart", changes).main
    chosen = []

    def choose(plan, counts, at):
        if at.clients == 10:  # fewer are asked about where the method is tried out
            chosen.append((at.round, at.client))
        return method(name).choose(plan, counts, at)

    counted = replace(method(name), choose=choose)
    ahead = Experiment(settings, method=counted).run()
    counts = Counter(each for each in chosen if each[0] < 3)  # after the last round all capacities are measured
    assert counts == dict.fromkeys(((round, client) for round in range(3) for client in range(10)), 1)
    experiment = Experiment(settings, method=method(name))
    plain = experiment.run(engine=NeverAhead(experiment.trainer, SlotPool(experiment.trainer), averages_here=True))
    assert same(dict(ahead.server.state), dict(plain.server.state))
    assert [line["clients"] for line in ahead.metrics] == [line["clients"] for line in plain.metrics]


def test_stacked_clients_of_unequal_size_agree_with_the_serial_engine():
    # Dirichlet shares differ in size, so batches are padded and clients end at different steps (no batch norm here).
    changes = ["rounds=3", "evaluation.every=3", "data.partition=dirichlet", "data.partition_options={alpha=1.0}"]
    changes += ["model.name=mlp", "model.options={hidden=[16,8]}", "training.lr=0.05", "data.clients=10"]
    one, many = (run(name, *changes) for name in ("serial", "vectorised"))
    assert worst(one, many) < 1e-9


class TiedWithNorms(nn.Module):
    """PyTorch's own batch norm, whose statistics are no parameters, and two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.second, self.third = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.third.weight = self.second.weight
        self.head = nn.Linear(6, 10)

    def forward(self, x):
        x = self.second(self.norm(self.first(x)).relu()).relu()
        return self.head(self.third(x).relu().mean((2, 3)))


def test_the_broadcast_of_fedbrb_leaves_statistics_alone_and_tied_weights_equal():
    states = []
    for engine in ("serial", "cuda"):
        torch.manual_seed(1)
        settings = small("method.name=fedbrb", f"engine={engine}", "devices.per_round=5", "rounds=3")
        states.append(Experiment(settings, model=TiedWithNorms()).run().server.state)
    serial, flat = states
    assert "norm.running_mean" in flat
    for name, tensor in serial.items():
        torch.testing.assert_close(flat[name], tensor, rtol=1e-4, atol=1e-5)
    assert torch.equal(flat["second.weight"], flat["third.weight"])
