"""Parts that are the whole model with some neighbouring layers trained: what clients hold where the rest is frozen.

A layer is a module with a weight of two dimensions or more, and the norms and biases that follow it, in the order in
which the model registers them. Frozen layers take part in the forward pass; of what comes before the first trained
layer nothing is kept for the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from fedwidth.core.cohort import CohortSum, label_weight
from fedwidth.core.cost import Cost, cost_of
from fedwidth.core.index import Index
from fedwidth.core.measurement import backward_macs
from fedwidth.core.narrow import skeleton
from fedwidth.core.updates import Update, check_alike, check_update
from fedwidth.plan.plan import Plan


def layers_of(plan: Plan) -> list[tuple[str, ...]]:
    """The tensors of every layer of a model by name, buffers included, tied ones once.

    >>> import torch, fedwidth
    >>> model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 2))
    >>> layers_of(fedwidth.trace(model, torch.zeros(2, 4)))
    [('0.weight', '0.bias', '1.weight', '1.bias'), ('2.weight', '2.bias')]
    """
    owners: dict[str, list[str]] = {}
    for name in plan.shapes:
        if name in plan.parameters and name not in plan.tied:
            owners.setdefault(_owner(name), []).append(name)
    for name in plan.shapes:
        if name not in plan.parameters and _owner(name) in owners:
            owners[_owner(name)].append(name)
    layers: list[list[str]] = []
    for names in owners.values():
        begins = any(len(plan.shapes[name]) > 1 for name in names if name in plan.parameters)
        if begins or not layers:
            layers.append([])
        layers[-1] += names
    return [tuple(layer) for layer in layers]


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def freeze(module: nn.Module, trained: frozenset[str]) -> nn.Module:
    """The module, in which only parameters of these names need a gradient, and of them those that did before."""
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in trained)
    return module


@dataclass(frozen=True, eq=False)
class Layers:
    """The whole model, of which a run of neighbouring layers is trained, from `first` to the one before `stop`."""

    full_width: ClassVar[bool] = True
    """Its layers are as wide as the model's, whatever the client's capacity."""
    one_module: ClassVar[str] = "layers"
    """Modules differ in what is trained alone: whoever sets that for every client needs one for all, by this name."""
    plan: Plan | None = field(repr=False)
    """None in worker processes, which have a plan of their own."""
    first: int
    stop: int
    """Equal to `first` where nothing is trained: the device can only run the model."""
    number_of_units: int
    """The units of the model, times the share of its parameters that is trained; at least 1."""

    @classmethod
    def of(cls, plan: Plan, first: int, stop: int) -> Layers:
        """The part that trains the layers from `first` to the one before `stop`."""
        names = {name for layer in layers_of(plan)[first:stop] for name in layer}
        sizes = {name: math.prod(plan.shapes[name]) for name in plan.parameters if name not in plan.tied}
        share = sum(size for name, size in sizes.items() if name in names) / sum(sizes.values())
        return cls(plan, first, stop, max(1, round(Index.whole(plan).number_of_units * share)))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "plan": None}

    @property
    def key(self) -> str:
        """Clients that train the same layers hold the same."""
        return f"layers {self.first} to {self.stop}"

    @property
    def size(self) -> str:
        """Which layers are trained: the others need no gradient, so modules differ."""
        return self.key

    @property
    def is_whole(self) -> bool:
        """It is never trained as a whole: that is an index."""
        return False

    def trained(self, plan: Plan) -> frozenset[str]:
        """The tensors of the layers that are trained."""
        return frozenset(name for layer in layers_of(plan)[self.first : self.stop] for name in layer)

    def cut(self, state: Mapping[str, Tensor], plan: Plan) -> dict[str, Tensor]:
        """A copy of the whole state."""
        plan.check_state(state)
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    def module(self, model: nn.Module, plan: Plan) -> nn.Module:
        """The model with all but the trained layers frozen."""
        return freeze(skeleton(model, plan, {}), self.trained(plan))

    def accumulator(self) -> LayerSum:
        """An empty sum for the updates of its clients."""
        return LayerSum(self)

    def cost(self, model: nn.Module, plan: Plan, example: Any, *, capacity: float) -> Cost:
        """What it costs a device: the whole model comes, the trained layers go back."""
        found = cost_of(lambda: self.module(model, plan), plan, example, capacity=capacity)
        trained = self.trained(plan)
        buffers = {name: tensor for name, tensor in model.named_buffers() if name not in trained}
        frozen = sum(tensor.numel() * tensor.element_size() for tensor in buffers.values())
        spared = 2 * found.macs - backward_macs(lambda: self.module(model, plan), example)
        # Buffers of frozen layers come with the model, and do not go back: they count as frozen weights do.
        return replace(
            found,
            bytes=found.bytes + frozen,
            buffer_bytes=found.buffer_bytes - frozen,
            frozen_bytes=found.frozen_bytes + frozen,
            resent_bytes=found.resent_bytes + frozen,
            spared_macs=spared,
        )


class LayerSum(CohortSum):
    """The weighted mean of the layers that clients trained; of frozen ones it knows nothing."""

    def __init__(self, part: Layers) -> None:
        assert part.plan is not None, "sums are made where the plan is"
        super().__init__(Index.whole(part.plan))
        self.part = part
        self._names = part.trained(part.plan)

    def add(self, update: Update, *, copy: bool = True) -> None:
        """Add one client's update; the sum is unchanged if the update is refused."""
        whole, plan = replace(update, index=self.index), self.index.plan
        check_update(whole, self.index)
        check_alike(whole.sub, self.mean, whole.who)
        for name, tensor in whole.sub.items():
            if name in self._names:
                self._add(name, tensor.detach(), label_weight(name, whole, plan), copy=copy)
        self.clients += 1
