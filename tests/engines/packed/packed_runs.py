"""Runs of one small model in double precision that can train as one batch."""

from __future__ import annotations

from functools import cache

from fedwidth.config.read import read_settings
from fedwidth.data import Data, from_tensors, load
from fedwidth.experiment import Experiment, build_model

BASE = ["rounds=3", "evaluation.every=1", "model.name=mlp", "model.options={hidden=[16,8]}", "engine=vectorised"]
BASE += ["training.lr=0.05", "data.clients=8", "devices.per_round=6", "training.batch_size=48"]

VARIANTS = (
    ["seed=1"],
    ["seed=2", "method.name=heterofl"],
    ["seed=3", "method.name=fedminoccurances", "data.partition=dirichlet", "data.partition_options={alpha=1.0}"],
    ["seed=1", "method.name=fedbrb", "training.lr=0.02"],
)


@cache
def digits() -> Data:
    """The digits in double precision."""
    data = load("digits")
    inputs = [data.transform(split.inputs).double() for split in (data.train, data.test)]
    return from_tensors(inputs[0], data.train.targets, inputs[1], data.test.targets, kind="images")


def experiments(*changes_of_each: list[str]) -> list[Experiment]:
    """A run for each list of changes; all share one data set in memory."""
    found = []
    for changes in changes_of_each:
        settings = read_settings("quickstart", [*BASE, *changes]).main
        found.append(Experiment(settings, model=build_model(settings, digits()).double(), data=digits()))
    return found
