"""Whole runs for every kind of objective, on every engine that can; and the line that says what is wrong."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedwidth.config.influence import identity
from fedwidth.config.read import read_config
from fedwidth.data import from_tensors
from fedwidth.errors import DataError, OptionError, PlanError
from fedwidth.experiment import Experiment
from fedwidth.objectives import OBJECTIVES, Objective
from fedwidth.objectives.catalogue import metric_of
from fedwidth.settings import Settings
from objective_runs import KINDS, METRIC, MLP, settings
from own_objective import SPANS, huber, within_one
from small_runs import same


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_learns_and_is_measured_everywhere(kind):
    result = Experiment(settings(*KINDS[kind], "rounds=12")).run()
    name = METRIC.get(kind, "accuracy")
    first, last = (line for line in (result.metrics[2], result.metrics[-1]))
    assert last["global_loss"] < first["global_loss"] or last["global_loss"] < 0.05
    for key in (f"global_{name}", f"local_{name}", f"validation_{name}"):
        assert math.isfinite(last[key]), key
    assert list(last[f"capacity_{name}"]) == ["1", "0.5"]
    assert last[f"capacity_{name}"]["1"] == last[f"global_{name}"]
    assert len(last["local_quantiles"]) == 5
    assert ("metric" in last) == (name != "accuracy")
    if name != "accuracy":
        assert last["metric"]["name"] == name
        assert last["metric"]["higher_is_better"] == (name not in ("mse", "mae"))


@pytest.mark.parametrize("kind", KINDS)
def test_worker_processes_give_the_same_bits(kind):
    one = Experiment(settings(*KINDS[kind], "rounds=2")).run()
    other = Experiment(settings(*KINDS[kind], "rounds=2", "engine=processes", "workers=2")).run()
    assert same(one.server.state, other.server.state)


def test_measured_as_by_hand():
    """The mean squared error over all test samples, and over each client's own."""
    experiment = Experiment(settings(*KINDS["regression"]))
    result = experiment.run()
    data, test = experiment.data, experiment.partition.test
    with torch.no_grad():
        answers = result.model(data.test.inputs)[:, 0]
    squares = (answers - data.test.targets).double().square()
    assert result.summary["global_mse"] == pytest.approx(float(squares.mean()), rel=1e-5)
    assert result.summary["global_loss"] == pytest.approx(float(squares.mean()), rel=1e-5)
    own = [float(squares[test[client]].mean()) for client in range(6) if len(test[client])]
    assert result.metrics[-1]["local_quantiles"][0] == pytest.approx(min(own), rel=1e-5)
    assert result.metrics[-1]["local_mse"] == pytest.approx(float(squares.mean()), rel=1e-5), (
        "all samples are somebody's"
    )


def test_classes_that_clients_lack_are_nothing_to_numbers():
    found = settings(*KINDS["regression"])
    assert (found.training.mask, found.server.label_rows) == ("none", False)
    with pytest.raises(OptionError, match="objective regression needs training.mask = 'none', not 'inf': there are no"):
        settings(*KINDS["regression"], "training.mask=inf")
    assert settings("data.name=digits").training.mask == "zero"


def test_from_python():
    x = torch.randn(60, 4)
    y = x.sum(1)
    data = from_tensors(x[:40], y[:40], x[40:], y[40:])
    own = Objective("mine", huber, metric_of(within_one))
    base = settings(*MLP, "data.validation=0")
    for objective in ("regression", OBJECTIVES["regression"], own, replace(own, name="another")):
        experiment = Experiment(base, data=data, objective=objective)
        result = experiment.run()
        name = experiment.settings.objective.name
        assert name in ("regression", "unnamed:mine", "unnamed:another")
        assert math.isfinite(result.summary[f"global_{'mse' if name == 'regression' else 'within_one'}"])
    assert (
        Experiment(base, data=data, objective="regression").settings
        == Experiment(settings(*MLP, "data.validation=0", "objective.name=regression"), data=data).settings
    )


def test_an_objective_that_a_module_has_is_saved_by_its_name(tmp_path):
    changes = ["model.name=own_objective:Ends", "data.name=own_objective:spans", "rounds=1"]
    experiment = Experiment(settings(*changes), objective=SPANS)
    experiment.run(tmp_path)
    assert read_config(tmp_path / "config.toml").objective.name == "own_objective:SPANS"
    again = Experiment(settings(*changes, "objective.name=own_objective:SPANS"))
    assert again.identity == experiment.identity
    assert same(again.run(tmp_path, resume=True).server.state, experiment.run().server.state)


def test_earlier_runs_are_the_same_runs():
    """The fingerprint of the default settings, as it was before there were objectives."""
    assert identity(Settings()) == "ea31e80c9397b0383f9ce8850e8d6870150868d4e0da3e6b6add510cc2a6c969"
    assert identity(Settings()) != identity(settings("objective.name=regression", *MLP))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            [*MLP, "data.name=own_objective:regression"],
            "targets of data set 'regression' are .* no class numbers: say what",
        ),
        (["objective.name=regresion"], "unknown objective 'regresion' \\(did you mean 'regression'"),
        (["objective.name=nowhere:X"], "objective 'nowhere:X': cannot import 'nowhere'"),
        (["objective.name=own_objective:huber"], "must be a fedwidth.Objective, not a function"),
        (["objective.name=unnamed:mine"], "was made in a program and has no name"),
        (["objective.loss=own_objective:nothing"], "loss 'own_objective:nothing': 'own_objective' has no 'nothing'"),
        (["objective.metric=mse"], "unknown metric for classification 'mse'"),
        (["objective.better=lower"], "objective.better is for a metric of your own, and objective.metric names none"),
        ([*KINDS["regression"], "objective.metric=mae", "objective.better=lower"], "and mae is not"),
        (["objective.better=best"], "objective.better must be one of higher, lower, or empty, not"),
        (["objective.loss=own_objective"], "loss 'own_objective' must be package.module:name, with its name in"),
        ([*KINDS["regression"], "objective.loss=own_objective:not_reduced"], "must be one number, .* not \\[2\\]"),
        ([*KINDS["regression"], "objective.loss=own_objective:constant"], "does not depend on the model's output"),
        (
            [*KINDS["regression"], "objective.loss=own_objective:failing"],
            "fails on the first samples: KeyError: 'no such",
        ),
        (
            [*KINDS["regression"], "objective.metric=own_objective:mean_of_all"],
            "one number for each sample, .* tensor \\[\\]",
        ),
        ([*KINDS["regression"], "objective.metric=own_objective:failing"], "metric failing fails on the first samples"),
        (
            [*KINDS["regression"], "objective.output=logits"],
            "objective.output is 'logits', but the model returns a Tensor",
        ),
        (["objective.name=segmentation"], "segmentation needs a whole number for each pixel"),
        (["objective.name=multi-label", "data.name=digits", *MLP], "multi-label targets must be zeros and ones"),
        ([*KINDS["two inputs"], "objective.output=5"], "objective.output is '5', but the model returns 2 things"),
        (
            ["model.name=own_objective:Tagger", "data.name=own_objective:pairs"],
            "the model failed on the example inputs",
        ),
        (
            ["model.name=own_objective:Dense", "data.name=own_objective:segmentation"],
            "the last dimension is its 2 classes",
        ),
        ([*MLP, "data.name=own_objective:spans"], "no class numbers"),
    ],
)
def test_mistakes_are_said_before_training(changes, message):
    with pytest.raises((OptionError, PlanError, DataError), match=message):
        Experiment(settings(*changes))


@pytest.mark.parametrize("layer", [nn.Linear(4, 1), nn.Conv1d(4, 1, 1)])
def test_inputs_of_numpys_precision_are_told_how_to_become_those_of_the_weights(layer):
    x = torch.randn(200, 4, 4, dtype=torch.float64)
    said = r"; inputs are float64, weights float32 unless a model says so: give inputs as \.float\(\)$"
    with pytest.raises(PlanError, match=said):
        Experiment(Settings(), model=layer, data=from_tensors(x, x, x, x), objective="regression")


def test_targets_that_are_not_what_they_should_be():
    x = torch.randn(40, 4)
    three = from_tensors(x, torch.full((40, 3), 2.0), x, torch.full((40, 3), 2.0))
    with pytest.raises(PlanError, match="multi-label targets must be zeros and ones"):
        Experiment(settings(*MLP, "data.validation=0"), data=three, objective="multi-label")
    with pytest.raises(PlanError, match="classification needs targets that are whole numbers, not .* of torch.float32"):
        Experiment(settings(*MLP, "data.validation=0"), data=three, objective="classification")
    classes = torch.arange(40) % 3
    maps = classes[:, None].expand(40, 4).contiguous()
    lasts = from_tensors(x, maps, x, maps)
    with pytest.raises(PlanError, match="the second dimension is its 3 classes; classes on the last axis are for"):
        Experiment(settings(*MLP, "data.validation=0"), data=lasts, model=Last(), objective="segmentation")


class Last(torch.nn.Module):
    """Classes on the last axis."""

    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(1, 8), torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.relu(self.body(x[..., None])))


def test_dense_logits_with_their_classes_last_are_classification():
    """What crashed at evaluation before: [N, H, W, C] logits."""
    x = torch.rand(40, 3, 3)
    y = (x > 0.5).long()
    data = from_tensors(x[:30], y[:30], x[30:], y[30:])
    model = Last()
    model.head = torch.nn.Linear(8, 2)
    result = Experiment(settings("data.validation=0"), data=data, model=model).run()
    with torch.no_grad():
        right = (result.model(data.test.inputs).argmax(-1) == data.test.targets).double().mean()
    assert result.summary["global_accuracy"] == pytest.approx(float(right))
