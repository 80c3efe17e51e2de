"""Small runs for every kind of objective."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from fedwidth.config.read import read_settings
from fedwidth.errors import FellBack
from fedwidth.settings import Settings

RECIPE = """
rounds = 6
data = { clients = 6, partition = "iid", validation = 0.1 }
devices = { per_round = 3, capacities = "1:1 1/2:1" }
training = { lr = 0.1, batch_size = 8, epochs = 2 }
evaluation = { every = 3, capacities = [1, 0.5] }
engine = "serial"
"""
MLP = ["model.name=mlp", "model.options={hidden=[16]}"]
KINDS = {
    "regression": [*MLP, "data.name=own_objective:regression", "objective.name=regression"],
    "two numbers": [
        *MLP,
        "data.name=own_objective:regression",
        "data.options={outputs=2}",
        "objective.name=regression",
        "objective.metric=mae",
    ],
    "own loss": [
        *MLP,
        "data.name=own_objective:regression",
        "objective.name=regression",
        "objective.loss=own_objective:huber",
        "objective.metric=own_objective:within_one",
    ],
    "multi-label": [*MLP, "data.name=own_objective:multi_label", "objective.name=multi-label"],
    "segmentation": [
        "model.name=own_objective:Dense",
        "data.name=own_objective:segmentation",
        "objective.name=segmentation",
    ],
    "token classification": ["model.name=own_objective:Tagger", "data.name=own_objective:tagging"],
    "two inputs": ["model.name=own_objective:Sum", "data.name=own_objective:pairs"],
    "own objective": [
        "model.name=own_objective:Ends",
        "data.name=own_objective:spans",
        "objective.name=own_objective:SPANS",
    ],
}
METRIC = {
    "regression": "mse",
    "two numbers": "mae",
    "own loss": "within_one",
    "multi-label": "f1",
    "segmentation": "mean_iou",
    "own objective": "exact_match",
}


def settings(*changes: str) -> Settings:
    return read_settings(RECIPE, changes).main


@contextmanager
def no_fallback() -> Iterator[None]:
    """What is trained inside trains as it was asked to, and not one client at a time instead."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    assert not [str(each.message) for each in said if issubclass(each.category, FellBack)]
