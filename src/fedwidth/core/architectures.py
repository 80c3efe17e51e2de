"""Which model a client of a capacity holds: a width of the run's model, or an architecture of its own.

By default it is a width of the run's model. A run may name other networks for clients of some capacities (`[[models]]`
in a recipe): an `Architecture` is such a network with its own plan, and is held whole. `held_at` is the one place that
answers for both, and what it gives, a `Held`, says the rest: its first tensors, its module, what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.core.cost import Cost, cost_of
from fedwidth.core.index import Index
from fedwidth.core.submodel import State, extract, state_of
from fedwidth.errors import OptionError
from fedwidth.plan.plan import Plan
from fedwidth.plan.trace import tensors_of


@dataclass(frozen=True, eq=False)
class Architecture:
    """A network that is no width of the run's model."""

    name: str
    model: nn.Module
    """The network without values: it goes to worker processes with every part of it."""
    plan: Plan
    first: State = field(repr=False, default_factory=dict)
    """The tensors it begins with, which stay behind then."""

    @classmethod
    def of(cls, name: str, model: nn.Module, plan: Plan) -> Architecture:
        """A network as it is now, under a name."""
        return cls(name, Index.whole(plan).module(model, plan).to("meta"), plan, state_of(model))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "first": {}}

    def filled(self) -> nn.Module:
        """The network with the tensors it begins with."""
        made = Index.whole(self.plan).module(self.model, self.plan).to_empty(device="cpu")
        with torch.no_grad():
            for name, tensor in tensors_of(made)[0].items():
                if name in self.first:
                    tensor.copy_(self.first[name])
        return made


Architectures = Mapping[float, Architecture]
"""The architectures of a run by the capacities that hold them; other capacities hold widths of the run's model."""


def held_at(architectures: Architectures, capacity: float | Fraction) -> Held:
    """The model that clients of this capacity hold."""
    found = architectures.get(float(capacity))
    return Held(float(capacity)) if found is None else Held(1.0, found)


def none_of(held: Held, enrolled: Sequence[float]) -> OptionError:
    """The error that no device holds such a model, with the widths that devices have."""
    there = f" ({', '.join(f'{width:g}' for width in enrolled)})" if enrolled else ""
    return OptionError(f"there is a model for each enrolled width{there}, and none of {held.label}")


@dataclass(frozen=True)
class Held:
    """The model that clients of some capacity hold, and others of the same kind."""

    width: float = 1.0
    """The share of its network's width."""
    architecture: Architecture | None = None
    """Its network, where that is not the run's model."""

    @property
    def label(self) -> str:
        """What tells it from all others of the run: its width, or the name of its architecture."""
        return f"{self.width:g}" if self.architecture is None else self.architecture.name

    @property
    def is_global(self) -> bool:
        """Whether it is the run's model itself, as the server holds it."""
        return self.architecture is None and self.width == 1

    def plan(self, plan: Plan) -> Plan:
        """The plan of its network, given that of the run's model."""
        return plan if self.architecture is None else self.architecture.plan

    def index(self, plan: Plan) -> Index:
        """Where its tensors lie in its network: the first units of every group, or all."""
        own = self.plan(plan)
        counts = own.counts(self.width)
        return Index.of_units(own, {name: torch.arange(count) for name, count in counts.items()})

    def first(self, state: State, plan: Plan) -> dict[str, Tensor]:
        """The tensors that it begins with, given the run's first state and plan."""
        if self.architecture is None:
            return {name: tensor.clone() for name, tensor in extract(state, plan, self.index(plan)).items()}
        device = next(iter(state.values())).device
        return {name: tensor.clone().to(device) for name, tensor in self.architecture.first.items()}

    def module(self, model: nn.Module, plan: Plan) -> nn.Module:
        """A module for its tensors, given the run's model and plan."""
        network = model if self.architecture is None else self.architecture.model
        made = self.index(plan).module(network, self.plan(plan))
        if self.architecture is None:
            return made
        device = next(model.parameters()).device
        return made if device.type == "meta" else made.to_empty(device=device)

    def cost(self, model: nn.Module, plan: Plan, example: Any, *, capacity: float) -> Cost:
        """What it costs a device, as a share of the run's model."""
        if self.architecture is None:
            return self.index(plan).cost(model, plan, example, capacity=capacity)
        return cost_of(self.architecture.filled, plan, example, capacity=capacity)


GLOBAL = Held()
"""The run's model itself."""
