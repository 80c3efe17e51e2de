"""Parts of a model whose inner kernels are composed of a common basis, with coefficients of the client's width."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from fedwidth.core.cohort import CohortSum, label_weight
from fedwidth.core.composed_layer import ComposedLayer
from fedwidth.core.cost import Cost, cost_of
from fedwidth.core.index import Index
from fedwidth.core.narrow import skeleton
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
class Composition:
    """A narrow model whose inner kernels are composed; it is no slice of the global state."""

    index: Index | None
    """Where its tensors would lie in the full model's; it and they stay behind when a part goes to worker processes."""
    width: float
    bases: Mapping[str, tuple[int, ...]]
    """The shape of the basis of every composed weight."""
    number_of_units: int
    """How many coefficients it has."""
    tensors: Mapping[str, Tensor] = field(repr=False, default_factory=dict)
    """What a client is sent."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "index": None, "tensors": {}}

    @property
    def key(self) -> str:
        """Clients of one width hold the same."""
        return f"composed {self.width:g}"

    @property
    def size(self) -> Hashable:
        """Its width."""
        return self.key

    @property
    def is_whole(self) -> bool:
        """It is never the global model itself: kernels are composed."""
        return False

    def cut(self, state: Mapping[str, Tensor], plan: Plan) -> dict[str, Tensor]:
        """The tensors of the width, and the basis."""
        del state, plan
        return {name: tensor.detach().clone() for name, tensor in self.tensors.items()}

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


class ModelOfItsOwn(Protocol):
    """A part whose tensors are no slices of the global state."""

    @property
    def index(self) -> Index | None:
        """Where its tensors would lie in the full model's."""

    @property
    def width(self) -> float:
        """The width whose model it is."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """What a client is sent."""


class CompositionSum(CohortSum):
    """The weighted mean of the tensors of clients of one width."""

    def __init__(self, part: ModelOfItsOwn) -> None:
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
