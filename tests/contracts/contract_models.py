"""Small models for the contracts: those of the catalogue, and the whole zoo of the tracer's tests."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor, nn

import fedwidth
import zoo
from fedwidth.models import build, example_inputs, names
from fedwidth.plan.plan import Plan

SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"data_shape": (1, 8, 8), "hidden": [32, 16]},
    "cnn": {"data_shape": (1, 8, 8), "widths": [16, 32]},
    "lenet": {"data_shape": (3, 16, 16), "widths": [16, 16], "hidden": [32, 16]},
    "preresnet18": {"data_shape": (3, 16, 16), "widths": [16, 16, 32, 32]},
    "transformer": {"vocabulary": 30, "embedding": 32, "heads": 2, "hidden": 32, "layers": 1, "dropout": 0.0},
}
"""Facts and options that make models of the catalogue small. One that is not listed is taken as large as it comes."""

MODELS = [*names(), *(f"zoo {name}" for name in zoo.EVERY)]


def from_catalogue(name: str) -> tuple[nn.Module, Tensor]:
    """A model of the catalogue, and an example batch for it."""
    facts = {key: value for key, value in SMALL.get(name, {}).items() if key == "data_shape"}
    return build(name, seed=1, **SMALL.get(name, {})), example_inputs(name, **facts)[0]


@cache
def traced(name: str) -> tuple[nn.Module, Plan, Any, dict[str, Tensor]]:
    """A model in evaluation mode, its plan, example inputs, and its state."""
    if name.startswith("zoo "):
        model, plan, inputs = zoo.traced(name.removeprefix("zoo "))
    else:
        model, inputs = from_catalogue(name)
        plan = fedwidth.trace(model.eval(), inputs)
    return model, plan, inputs, fedwidth.state_of(model)
