"""Models that end in the same layer as the wide one, with a projection before it where their features are others.

The last layer of a narrow model takes fewer features, so it has another shape. A projection from the narrow features to
as many as the wide model has lets all models end in one layer of one shape, which can be averaged over all of them. An
architecture of its own has one too, unless it has as many features as the wide model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.core.architectures import Architecture, Held, held_at
from fedwidth.core.cost import Cost, cost_of
from fedwidth.core.factored.composition import CompositionSum
from fedwidth.core.part import WidthPart
from fedwidth.errors import OptionError
from fedwidth.methods.definition import Beginning, Moment, named
from fedwidth.methods.shared.width_models import all_held, kept_as, remembered_of
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


def projects(held: Held, plan: Plan) -> bool:
    """Whether a projection stands before the common layer: where a model has other features than it takes."""
    last = last_layer(plan)
    if held.architecture is None:
        return held.width < 1 and last is not None
    return held.architecture.plan.shapes[f"{_own_last(held, plan)}.weight"][1] != plan.shapes[f"{last}.weight"][1]


def _own_last(held: Held, plan: Plan) -> str:
    """What a model calls its last layer."""
    return last_layer(held.plan(plan)) or ""


def shared_names(held: Held, plan: Plan) -> dict[str, str]:
    """What the tensors of the common layer are called in the wide model, and in another one."""
    last = last_layer(plan)
    if last is None:
        return {}
    own = _own_last(held, plan)
    inner = f"{own}.layer" if projects(held, plan) else own
    return {f"{last}.{name}": f"{inner}.{name}" for name in ("weight", "bias")}


def init(beginning: Beginning) -> dict[str, Tensor]:
    """A model for every enrolled capacity, each with the wide one's last layer; projections begin at random."""
    plan, state = beginning.plan, beginning.state
    last, memory = last_layer(plan), dict[str, Tensor]()
    if last is None and beginning.model is not None:
        raise OptionError("Fed-ET needs a model that ends in a linear layer of its own, which all widths can share")
    for place, held in enumerate(all_held(beginning.enrolled, beginning.architectures)):
        if held.architecture is not None:
            check_ending(held.architecture, plan)
        tensors = held.first(state, plan)
        if not held.is_global and last is not None:
            generator = torch_generator(beginning.seed, "project", place)
            tensors = with_common_layer(held, tensors, beginning, generator)
        memory |= named(kept_as(held), tensors)
    return memory


def check_ending(architecture: Architecture, plan: Plan) -> None:
    """Refuse an architecture that cannot end in the run's last layer."""
    last, own = last_layer(plan), last_layer(architecture.plan)
    has_bias = f"{last}.bias" in plan.shapes
    if own is None or (f"{own}.bias" in architecture.plan.shapes) != has_bias:
        raise OptionError(
            f"Fed-ET needs models that end in one linear layer of their own, {'with' if has_bias else 'without'} a bias"
            f" as the run's model does, and '{architecture.name}' does not"
        )


def with_common_layer(
    held: Held, tensors: Mapping[str, Tensor], beginning: Beginning, generator: torch.Generator
) -> dict[str, Tensor]:
    """The tensors of a model with the wide one's last layer in place of its own, and a projection if it needs one."""
    plan, state, own = beginning.plan, beginning.state, _own_last(held, beginning.plan)
    found = {name: tensor for name, tensor in tensors.items() if name not in (f"{own}.weight", f"{own}.bias")}
    names = shared_names(held, plan)
    found |= {inner: state[full].clone() for full, inner in names.items() if full in state}
    if projects(held, plan):
        weight, narrow = state[f"{last_layer(plan)}.weight"], tensors[f"{own}.weight"].shape[1]
        drawn = torch.rand(weight.shape[1], narrow + 1, generator=generator)
        drawn = ((drawn * 2 - 1) / math.sqrt(narrow)).to(weight)  # as PyTorch begins a linear layer
        found[f"{own}.projection.weight"] = drawn[:, :-1].contiguous()
        found[f"{own}.projection.bias"] = drawn[:, -1].contiguous()
    return found


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> ProjectedModel:
    """The model of the client's capacity."""
    del counts
    held = held_at(at.architectures, at.capacity)
    index = held.index(plan)
    return ProjectedModel(index, held, index.number_of_units, remembered_of(at, held))


@dataclass(frozen=True, eq=False)
class ProjectedModel(WidthPart):
    """A model of its own that ends in the layer all models share."""

    kind = "projected"

    def module(self, model: nn.Module, plan: Plan) -> nn.Module:
        """Its module, ending where its features are others in a projection and the wide model's last layer."""
        made = self.held.module(model, plan)
        if projects(self.held, plan):
            own = _own_last(self.held, plan)
            layer = made.get_submodule(own)
            assert isinstance(layer, nn.Linear)
            made.set_submodule(own, Projection(layer, plan.shapes[f"{last_layer(plan)}.weight"][1]))
        return made

    def accumulator(self) -> CompositionSum:
        """An empty sum for the updates of its clients."""
        return CompositionSum(self)

    def cost(self, model: nn.Module, plan: Plan, example: Any, *, capacity: float) -> Cost:
        """What it costs a device."""
        return cost_of(lambda: self.module(model, plan), plan, example, capacity=capacity)
