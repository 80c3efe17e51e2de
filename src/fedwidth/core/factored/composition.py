"""Parts of a model whose inner kernels are composed of a common basis, with coefficients of the client's width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fedwidth.core.cohort import CohortSum, label_weight
from fedwidth.core.cost import Cost, cost_of
from fedwidth.core.factored.composed_layer import ComposedLayer
from fedwidth.core.narrow import skeleton
from fedwidth.core.part import WidthPart
from fedwidth.core.updates import Update, check_finite
from fedwidth.errors import UpdateError
from fedwidth.plan.plan import Plan


def basis_name(weight: str) -> str:
    """What the basis of a composed weight is called in a client's module."""
    return weight.removesuffix("weight") + "basis"


def coefficient_name(weight: str) -> str:
    """What the coefficients of a composed weight are called."""
    return weight.removesuffix("weight") + "coefficients"


@dataclass(frozen=True, eq=False)
class Composition(WidthPart):
    """A narrow model whose inner kernels are composed."""

    kind = "composed"
    bases: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The shape of the basis of every composed weight."""

    def module(self, model: nn.Module, plan: Plan) -> nn.Module:
        """The narrow model with composed layers in place of plain ones."""
        made = skeleton(model, plan, plan.counts(self.width))
        for weight, shape in self.bases.items():
            name = weight.removesuffix(".weight")
            made.set_submodule(name, ComposedLayer(made.get_submodule(name), shape))
        return made

    def accumulator(self) -> CompositionSum:
        """An empty sum for the updates of its clients."""
        return CompositionSum(self)

    def cost(self, model: nn.Module, plan: Plan, example: Any, *, capacity: float) -> Cost:
        """What it costs a device."""
        return cost_of(lambda: self.module(model, plan), plan, example, capacity=capacity)


class CompositionSum(CohortSum):
    """The weighted mean of the tensors of clients of one width."""

    def __init__(self, part: WidthPart) -> None:
        assert part.index is not None, "sums are made where the plan is"
        super().__init__(part.index)
        self.part = part

    def add(self, update: Update, *, copy: bool = True) -> None:
        """Add one client's update; the sum is unchanged if the update is refused."""
        tied = self.index.plan.tied
        own = {name: tensor for name, tensor in self.part.tensors.items() if tied.get(name) not in self.part.tensors}
        for name, tensor in own.items():
            if name not in update.sub or update.sub[name].shape != tensor.shape:
                raise UpdateError(f"{update.who} lacks '{name}' of shape {list(tensor.shape)}")
        check_finite(update.sub, update.who)
        for name in own:
            weight = label_weight(name, update, self.index.plan)
            self._add(name, update.sub[name].detach(), weight, copy=copy)
        self.clients += 1
