"""Parts of a model whose layers are products of two factors: what clients of low-rank methods hold instead of slices.

A client holds some components of every factored weight (`decomposition`): `down` has its v_i as rows, `up` its u_i as
columns, and a layer of two takes the place of one (`factored_layer`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.core.cohort import CohortSum
from fedwidth.core.cost import Cost, cost_of
from fedwidth.core.factored.decomposition import decompose, from_matrices, matrix_shape
from fedwidth.core.factored.factored_layer import FactoredLayer
from fedwidth.core.index import Index
from fedwidth.core.narrow import skeleton
from fedwidth.core.running_mean import accumulable, interpolate
from fedwidth.core.updates import Update
from fedwidth.errors import StateError
from fedwidth.plan.plan import Plan


def factor_names(weight: str) -> tuple[str, str]:
    """What the two factors of a weight are called: the names of its module's `up` and `down`."""
    module = weight.removesuffix("weight")
    return f"{module}up", f"{module}down"


@dataclass(frozen=True, eq=False)
class Factors:
    """A part of the model in which some layers are products of two factors."""

    plan: Plan | None = field(repr=False)
    """None in worker processes, which have a plan of their own."""
    reading: str
    components: Mapping[str, tuple[int, ...]]
    """For each factored weight which of its components the client holds, in rising order; other tensors are whole."""
    keeps_factors: bool = False
    """Whether the mean of clients' factors is wanted beside the mean of their products."""
    decays: bool = False
    """Whether weight decay of the settings moves factors too; else products alone are regularised."""

    def __getstate__(self) -> dict[str, Any]:
        return {
            "plan": None,
            **{name: vars(self)[name] for name in ("reading", "components", "keeps_factors", "decays")},
        }

    @cached_property
    def key(self) -> str:
        """Clients with the same components hold the same."""
        text = f"{self.reading} {self.keeps_factors} {self.decays} {sorted(self.components.items())}"
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def size(self) -> Hashable:
        """The number of components of each factored weight."""
        return self.reading, tuple((name, len(held)) for name, held in sorted(self.components.items()))

    @property
    def number_of_units(self) -> int:
        """How many components it holds."""
        return sum(len(held) for held in self.components.values())

    @property
    def is_whole(self) -> bool:
        """It is never the global model itself: at least one layer is a product."""
        return False

    def cut(self, state: Mapping[str, Tensor], plan: Plan) -> dict[str, Tensor]:
        """The tensors the client is sent: factors, and copies of all that is not factored."""
        plan.check_state(state)
        sub = {name: tensor.detach().clone() for name, tensor in state.items() if name not in self.components}
        for weight, held in self.components.items():
            up, down, _ = decompose(state[weight], plan.layers[weight], self.reading)
            numbers = torch.tensor(held, device=up.device)
            sub |= dict(zip(factor_names(weight), (up[:, :, numbers], down[:, numbers]), strict=True))
        return sub

    def module(self, model: nn.Module, plan: Plan) -> nn.Module:
        """The model with two layers in place of each factored one."""
        made = skeleton(model, plan, {})
        for weight, held in self.components.items():
            name = weight.removesuffix(".weight")
            rows, columns = matrix_shape(plan, weight, self.reading)[1:]
            layer, rank = made.get_submodule(name), len(held)
            made.set_submodule(name, FactoredLayer(layer, self.reading, rows, rank, columns, decays=self.decays))
        return made

    def accumulator(self) -> FactorSum:
        """An empty sum for the updates of its clients."""
        return FactorSum(self)

    def products(self, sub: Mapping[str, Tensor], plan: Plan) -> dict[str, Tensor]:
        """A sub-model with its factors multiplied, in the full model's names and shapes."""
        whole: dict[str, Tensor] = {}
        for weight in self.components:
            up, down = (sub.get(name) for name in factor_names(weight))
            if up is None or down is None:
                raise StateError(f"the sub-model lacks the factors of '{weight}'")
            # In double, as they were decomposed: a GPU may round what it multiplies in single precision (TF32).
            product = (up.double() @ down.double()).to(up.dtype)
            whole[weight] = from_matrices(product, plan.shapes[weight], self.reading)
        factors = {name for weight in self.components for name in factor_names(weight)}
        return whole | {name: tensor for name, tensor in sub.items() if name not in factors}

    def cost(self, model: nn.Module, plan: Plan, example: Any, *, capacity: float) -> Cost:
        """What it costs a device."""
        return cost_of(lambda: self.module(model, plan), plan, example, capacity=capacity)


class FactorSum(CohortSum):
    """The weighted mean of clients' products, and where it is wanted of their factors."""

    def __init__(self, part: Factors) -> None:
        assert part.plan is not None, "sums are made where the plan is"
        super().__init__(Index.whole(part.plan))
        self.part = part
        self.factors: dict[str, Tensor] = {}
        """The mean of each factor by name, where the part keeps them."""

    def add(self, update: Update, *, copy: bool = True) -> None:
        """Add one client's update; the sum is unchanged if the update is refused."""
        plan = self.index.plan
        super().add(replace(update, sub=self.part.products(update.sub, plan), index=self.index), copy=copy)
        if not self.part.keeps_factors:
            return
        for weight in self.part.components:
            for name in factor_names(weight):
                value = accumulable(update.sub[name].detach())
                if name in self.factors:
                    interpolate(self.factors[name], value, update.weight / self.total_weight)
                else:
                    self.factors[name] = value.clone()
