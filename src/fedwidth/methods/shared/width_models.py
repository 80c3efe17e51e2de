"""A model for every width or architecture: what methods share whose devices train networks of different sizes.

Unlike slices of one model these have no weight in common. The run's own model, at width 1, is the run's state; the
others are in the method's memory. Which of them a client holds is for `core/architectures.py` to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedwidth.core.aggregation import finalise
from fedwidth.core.architectures import Architectures, Held, held_at, none_of
from fedwidth.core.cohort import CohortSum
from fedwidth.core.index import Index
from fedwidth.core.part import WidthPart
from fedwidth.core.submodel import extract, put
from fedwidth.core.updates import Update
from fedwidth.methods.definition import Beginning, Closing, Memory, Moment, named, under
from fedwidth.plan.plan import Plan

if TYPE_CHECKING:
    from fedwidth.core.cost import Cost

WIDTH, ARCHITECTURE = "width", "architecture"
"""How the method's memory names the models that it keeps."""


def kept_as(held: Held) -> str:
    """The name under which the method remembers a model."""
    return f"{WIDTH if held.architecture is None else ARCHITECTURE}.{held.label}"


def all_held(enrolled: Sequence[float], architectures: Architectures) -> list[Held]:
    """The models that clients of these capacities hold, each once, narrow ones first."""
    return list(dict.fromkeys(held_at(architectures, width) for width in sorted(map(float, enrolled))))


def init(beginning: Beginning) -> dict[str, Tensor]:
    """Before the first round every narrow model is the first units of the wide one; architectures have their own."""
    memory: dict[str, Tensor] = {}
    for held in all_held(beginning.enrolled, beginning.architectures):
        if not held.is_global:
            memory |= named(kept_as(held), held.first(beginning.state, beginning.plan))
    return memory


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> Index | WidthModel:
    """The model of the client's capacity."""
    del counts
    held = held_at(at.architectures, at.capacity)
    if held.is_global:
        return Index.whole(plan)
    index = held.index(plan)
    return WidthModel(index, held, index.number_of_units, remembered_of(at, held))


def remembered_of(at: Moment, held: Held) -> dict[str, Tensor]:
    """The tensors of a model in the method's memory, which must have it."""
    tensors = under(at.memory, kept_as(held))
    if not tensors:
        raise none_of(held, at.enrolled)
    return tensors


@dataclass(frozen=True, eq=False)
class WidthModel(WidthPart):
    """A narrow model of its own, or an architecture."""

    kind = WIDTH

    def module(self, model: nn.Module, plan: Plan) -> nn.Module:
        """A module for it."""
        return self.held.module(model, plan)

    def accumulator(self) -> WidthSum:
        """An empty sum for the updates of its clients."""
        assert self.index is not None, "sums are made where the plan is"
        return WidthSum(self.index)

    def cost(self, model: nn.Module, plan: Plan, example: Any, *, capacity: float) -> Cost:
        """What it costs a device: as any slice of its width."""
        return self.held.cost(model, plan, example, capacity=capacity)


class WidthSum(CohortSum):
    """The weighted mean of the models of one width or architecture."""

    def add(self, update: Update, *, copy: bool = True) -> None:
        """Add one client's update; the sum is unchanged if the update is refused."""
        super().add(replace(update, index=self.index), copy=copy)


def averages(closing: Closing) -> dict[Held, dict[str, Tensor]]:
    """For every model that took part the mean over its clients, as FedAvg takes it: its tensors."""
    sums: dict[Held, list[CohortSum]] = {}
    for one, task in zip(closing.sums, closing.tasks, strict=True):
        sums.setdefault(held_at(closing.architectures, task.capacity), []).append(one)
    return {held: _average(closing, held, own) for held, own in sums.items()}


def _average(closing: Closing, held: Held, sums: Sequence[CohortSum]) -> dict[str, Tensor]:
    """The mean of one model over its clients."""
    if held.is_global:
        return finalise(closing.state, sums, closing.plan)
    before = under(closing.memory, kept_as(held))
    if held.architecture is not None:
        return finalise(before, sums, held.architecture.plan)
    index = held.index(closing.plan)
    old = {name: tensor.clone() for name, tensor in closing.state.items()}
    for name, tensor in before.items():
        put(old[name], tensor, index, name)
    return extract(finalise(old, sums, closing.plan), closing.plan, index)


def filled(closing: Closing, held: Held, tensors: Mapping[str, Tensor]) -> nn.Module:
    """A module of a model with these tensors, on the device of the closing."""
    assert closing.model is not None
    return fill(closing, held.module(closing.model, closing.plan), tensors)


def fill(closing: Closing, module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """A module on the device of the closing, with these tensors in it."""
    module = module.to(closing.device)
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


def remembered(memory: Memory, models: Mapping[Held, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The memory with these models; the run's own is the state and not in it."""
    new = dict(memory)
    for held, tensors in models.items():
        if not held.is_global:
            new |= named(kept_as(held), tensors)
    return new


def teachers(closing: Closing) -> list[nn.Module]:
    """The models that single clients sent, as modules that only answer.

    What an engine does not add up, such as counters where it adds up vectors, is what the client was sent.
    """
    assert closing.model is not None
    found = []
    for one, task in zip(closing.sums, closing.tasks, strict=True):
        tensors = {**task.part.cut(closing.state, closing.plan), **one.mean}
        found.append(fill(closing, task.part.module(closing.model, closing.plan), tensors).eval())
    return found
