"""A model for every width: what methods share whose devices of different sizes train different networks.

Unlike slices of one model these have no weight in common. The widest, of width 1, is the run's own state; the others
are in the method's memory, cut out of it once, before the first round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedwidth.core.aggregation import finalise
from fedwidth.core.cohort import CohortSum
from fedwidth.core.index import Index
from fedwidth.core.part import WidthPart
from fedwidth.core.submodel import extract, put
from fedwidth.core.updates import Update
from fedwidth.errors import OptionError
from fedwidth.methods.definition import Beginning, Closing, Memory, Moment, named, under
from fedwidth.plan.plan import Plan

if TYPE_CHECKING:
    from fedwidth.core.cost import Cost

WIDTH = "width"


def first_units(plan: Plan, width: float) -> Index:
    """The first units of every group: where the tensors of a width lie in the full model's."""
    return Index.of_units(plan, {name: torch.arange(count) for name, count in plan.counts(width).items()})


def init(beginning: Beginning) -> dict[str, Tensor]:
    """Before the first round every narrow model is the first units of the wide one."""
    memory: dict[str, Tensor] = {}
    for width in sorted({float(width) for width in beginning.enrolled if width < 1}):
        tensors = extract(beginning.state, beginning.plan, first_units(beginning.plan, width))
        memory |= named(f"{WIDTH}.{width:g}", {name: tensor.clone() for name, tensor in tensors.items()})
    return memory


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> Index | WidthModel:
    """The model of the client's width."""
    del counts
    width = float(at.capacity)
    if width == 1:
        return Index.whole(plan)
    tensors = under(at.memory, f"{WIDTH}.{width:g}")
    if not tensors:
        raise OptionError(f"there is a model for each enrolled width, and none of {width:g}")
    index = first_units(plan, width)
    return WidthModel(index, width, index.number_of_units, tensors)


@dataclass(frozen=True, eq=False)
class WidthModel(WidthPart):
    """A narrow model of its own."""

    kind = WIDTH

    def module(self, model: nn.Module, plan: Plan) -> nn.Module:
        """A narrow module."""
        return first_units(plan, self.width).module(model, plan)

    def accumulator(self) -> WidthSum:
        """An empty sum for the updates of its clients."""
        assert self.index is not None, "sums are made where the plan is"
        return WidthSum(self.index)

    def cost(self, model: nn.Module, plan: Plan, example: Any, *, capacity: float) -> Cost:
        """What it costs a device: as any slice of its width."""
        return first_units(plan, self.width).cost(model, plan, example, capacity=capacity)


class WidthSum(CohortSum):
    """The weighted mean of the models of one width."""

    def add(self, update: Update, *, copy: bool = True) -> None:
        """Add one client's update; the sum is unchanged if the update is refused."""
        super().add(replace(update, index=self.index), copy=copy)


def averages(closing: Closing) -> dict[float, dict[str, Tensor]]:
    """For every width that took part the mean over its clients, as FedAvg takes it: the tensors of the width."""
    found: dict[float, dict[str, Tensor]] = {}
    for width in dict.fromkeys(task.capacity for task in closing.tasks):
        sums = [one for one, task in zip(closing.sums, closing.tasks, strict=True) if task.capacity == width]
        if width == 1:
            found[width] = finalise(closing.state, sums, closing.plan)
            continue
        index = first_units(closing.plan, width)
        old = {name: tensor.clone() for name, tensor in closing.state.items()}
        for name, tensor in under(closing.memory, f"{WIDTH}.{width:g}").items():
            put(old[name], tensor, index, name)
        found[width] = extract(finalise(old, sums, closing.plan), closing.plan, index)
    return found


def filled(closing: Closing, width: float, tensors: Mapping[str, Tensor]) -> nn.Module:
    """A module of a width with these tensors, on the device of the closing."""
    assert closing.model is not None
    index = Index.whole(closing.plan) if width == 1 else first_units(closing.plan, width)
    module = index.module(closing.model, closing.plan).to(closing.device)
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if name in tensors:
                tensor.copy_(tensors[name])
    if closing.channels_last:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module


def tensors_of(module: nn.Module, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a module by name, in the types and on the devices of others."""
    found = dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)])
    return {
        name: found[name].detach().to(tensor).contiguous() if name in found else tensor for name, tensor in like.items()
    }


def remembered(memory: Memory, models: Mapping[float, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The memory with the models of these widths; the widest is the state and not in it."""
    new = dict(memory)
    for width, tensors in models.items():
        if width < 1:
            new |= named(f"{WIDTH}.{width:g}", tensors)
    return new


def teachers(closing: Closing) -> list[nn.Module]:
    """The models that single clients sent, as modules that only answer."""
    pairs = zip(closing.sums, closing.tasks, strict=True)
    return [filled(closing, task.capacity, one.mean).eval() for one, task in pairs]
