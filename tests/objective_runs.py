"""Small runs for every kind of objective."""

from __future__ import annotations

from functools import cache

from fedwidth.config.read import read_settings
from fedwidth.engines.support import ENGINES, why_not_support
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
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


TASKS = {
    "classification": ["model.name=own_objective:Plain", "data.name=own_data:in_memory"],
    "next-word": [
        "model.name=own_objective:NextWord",
        "data.name=synthetic_text",
        "data.options={users=12,words=30,length=5}",
    ],
    "tagging": KINDS["token classification"],
    "regression": KINDS["regression"],
    "multi-label": KINDS["multi-label"],
    "segmentation": KINDS["segmentation"],
    "own objective": KINDS["own objective"],
}
"""A run for every task of the table of what trains what."""


@cache
def support(method: str, task: str) -> dict[str, str | None]:
    """What every engine says to a method and a task: why not, or None."""
    changes = ["rounds=1", "data.clients=4", "devices.per_round=2", "training.epochs=1", f"method.name={method}"]
    try:
        trainer = Experiment(settings(*TASKS[task], *changes)).trainer
    except OptionError as error:
        return dict.fromkeys(ENGINES, str(error).partition(": choose another")[0])
    return {engine: why_not_support(trainer, engine) for engine in ENGINES}
