"""Narrow models that end in the same layer as the wide one, with a projection before it.

The last layer of a narrow model takes fewer features, so it has another shape. A projection from the narrow features to
as many as the wide model has lets all models end in one layer of one shape, which can be averaged over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.core.cost import Cost, cost_of
from fedwidth.core.factored.composition import CompositionSum
from fedwidth.core.narrow import skeleton
from fedwidth.core.part import WidthPart
from fedwidth.core.submodel import extract
from fedwidth.errors import OptionError
from fedwidth.methods.definition import Beginning, Moment, named, under
from fedwidth.methods.shared.width_models import WIDTH, first_units
from fedwidth.plan.axis import groups_of
from fedwidth.plan.plan import Plan
from fedwidth.randomness import torch_generator


class Projection(nn.Module):
    """A linear layer to as many features as another layer takes, and that layer."""

    def __init__(self, layer: nn.Linear, features: int) -> None:
        super().__init__()
        self.projection = nn.Linear(layer.in_features, features).to(layer.weight)
        self.layer = nn.Linear(features, layer.out_features, bias=layer.bias is not None).to(layer.weight)
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def forward(self, inputs: Tensor) -> Tensor:
        """Project, then the layer."""
        found: Tensor = self.layer(self.projection(inputs))
        return found


def last_layer(plan: Plan) -> str | None:
    """The name of the layer that all models end in: the last linear one that gives the model's output, if any does."""
    ends = [n for n in plan.layers if not groups_of(plan.axes[n][0]) and groups_of(plan.axes[n][1])]
    return ends[-1].removesuffix(".weight") if ends and len(plan.shapes[ends[-1]]) == 2 else None


def shared_names(last: str | None, width: float) -> dict[str, str]:
    """What the tensors of the common layer are called in the wide model, and in the model of a width."""
    if last is None:
        return {}
    inner = last if width == 1 else f"{last}.layer"
    return {f"{last}.{name}": f"{inner}.{name}" for name in ("weight", "bias")}


def init(beginning: Beginning) -> dict[str, Tensor]:
    """A model for every enrolled width: the first units of the wide one, projections at random, the wide last layer."""
    plan, state = beginning.plan, beginning.state
    last, memory = last_layer(plan), dict[str, Tensor]()
    if last is None and beginning.model is not None:
        raise OptionError("Fed-ET needs a model that ends in a linear layer of its own, which all widths can share")
    for place, width in enumerate(sorted({float(width) for width in beginning.enrolled})):
        index = first_units(plan, width)
        tensors = {name: tensor.clone() for name, tensor in extract(state, plan, index).items()}
        if width < 1 and last is not None:
            weight = state[f"{last}.weight"]
            narrow = tensors[f"{last}.weight"].shape[1]
            drawn = torch.rand(weight.shape[1], narrow + 1, generator=torch_generator(beginning.seed, "project", place))
            drawn = ((drawn * 2 - 1) / math.sqrt(narrow)).to(weight)  # as PyTorch begins a linear layer
            for full, own in shared_names(last, width).items():
                if full in tensors:
                    del tensors[full]
                    tensors[own] = state[full].clone()
            tensors[f"{last}.projection.weight"] = drawn[:, :-1].contiguous()
            tensors[f"{last}.projection.bias"] = drawn[:, -1].contiguous()
        memory |= named(f"{WIDTH}.{width:g}", tensors)
    return memory


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> ProjectedModel:
    """The model of the client's width."""
    del counts
    width = float(at.capacity)
    tensors = under(at.memory, f"{WIDTH}.{width:g}")
    if not tensors:
        raise OptionError(f"there is a model for each enrolled width, and none of {width:g}")
    index = first_units(plan, width)
    return ProjectedModel(index, width, index.number_of_units, tensors)


@dataclass(frozen=True, eq=False)
class ProjectedModel(WidthPart):
    """A model of its own that ends in the layer all models share."""

    kind = "projected"

    def module(self, model: nn.Module, plan: Plan) -> nn.Module:
        """The narrow module, ending in a projection and the wide model's last layer."""
        made = skeleton(model, plan, plan.counts(self.width))
        last = last_layer(plan)
        if self.width < 1 and last is not None:
            layer = made.get_submodule(last)
            assert isinstance(layer, nn.Linear)
            made.set_submodule(last, Projection(layer, plan.shapes[f"{last}.weight"][1]))
        return made

    def accumulator(self) -> CompositionSum:
        """An empty sum for the updates of its clients."""
        return CompositionSum(self)

    def cost(self, model: nn.Module, plan: Plan, example: Any, *, capacity: float) -> Cost:
        """What it costs a device."""
        return cost_of(lambda: self.module(model, plan), plan, example, capacity=capacity)
