"""A model for every client, which stays with it: what methods share whose clients send answers instead of weights.

A client begins with the model of its size as it was before the first round, which the server keeps for it, and goes on
with what it kept of its last round. Where capacities change from round to round, it keeps one for each it has had.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fedwidth.core.answers import AnswerSum
from fedwidth.core.architectures import Held, held_at, none_of
from fedwidth.core.index import Index
from fedwidth.core.submodel import extract
from fedwidth.methods.definition import Beginning, Memory, Moment, named, under
from fedwidth.methods.shared.width_models import all_held
from fedwidth.plan.plan import Plan

if TYPE_CHECKING:
    from fedwidth.core.cost import Cost

Counts = Mapping[str, int]
"""How many units of every group a model has."""

FIRST, MODEL = "first", "model"
"""What the server remembers: the models that clients begin with. And what a client does: its own."""


def units_of(plan: Plan, counts: Counts) -> Index:
    """The first units of every group, so many of each."""
    return Index.of_units(plan, {name: range(count) for name, count in counts.items()})


def first_models(beginning: Beginning, kept: Callable[[Counts], Counts] = lambda counts: counts) -> dict[str, Tensor]:
    """What the server remembers for clients that begin: every model that one of them may hold.

    `kept` says how many units of each group there really are, given those of a width of the run's model.
    """
    plan, state, memory = beginning.plan, beginning.state, dict[str, Tensor]()
    for held in all_held(beginning.enrolled, beginning.architectures):
        if held.architecture is None:
            cut = extract(state, plan, units_of(plan, kept(plan.counts(held.width))))
            tensors = {name: tensor.clone() for name, tensor in cut.items()}
        else:
            tensors = held.first(state, plan)
        memory |= named(f"{FIRST}.{held.label}", tensors)
    return memory


def own_model(plan: Plan, counts: Counts, at: Moment) -> OwnModel:
    """The model of the client that is asked about; of a width of the run's model, with so many units of every group."""
    held = held_at(at.architectures, at.capacity)
    first = under(at.memory, f"{FIRST}.{held.label}")
    if not first:
        raise none_of(held, at.enrolled)
    if held.architecture is not None:
        counts = held.index(plan).counts
    return OwnModel(at.number, held, dict(counts), first, at.own)


@dataclass(frozen=True, eq=False)
class OwnModel:
    """One client's own model."""

    client: int
    held: Held
    """Which model it is a copy of."""
    counts: Counts
    """How many units of every group of its network it has."""
    first: Memory = field(repr=False, default_factory=dict)
    """What it begins with. It and what clients remember stay behind when a part goes to workers."""
    own: Mapping[int, Memory] = field(repr=False, default_factory=dict)
    """What clients remember, by their numbers. It may be in files, and is read when the model is cut."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "counts": dict(self.counts), "first": {}, "own": {}}

    @property
    def key(self) -> str:
        """Every client holds its own."""
        return f"{self.size} of client {self.client}"

    @property
    def kept_as(self) -> str:
        """The name under which the client remembers it."""
        return f"{MODEL}.{self.held.label}"

    @property
    def size(self) -> Hashable:
        """Its width or architecture: models of one kind take turns in one module."""
        return f"{MODEL} {self.held.label}"

    @property
    def number_of_units(self) -> int:
        """How many units it has."""
        return sum(self.counts.values())

    @property
    def is_whole(self) -> bool:
        """It is never the run's own model."""
        return False

    @property
    def is_new(self) -> bool:
        """Whether the client has no model of this kind yet, so that it must be sent one."""
        return not under(self.own.get(self.client, {}), self.kept_as)

    def cut(self, state: Mapping[str, Tensor], plan: Plan) -> dict[str, Tensor]:
        """Its tensors, as the client left them, or as clients begin."""
        del state, plan
        tensors = under(self.own.get(self.client, {}), self.kept_as) or self.first
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def module(self, model: nn.Module, plan: Plan) -> nn.Module:
        """A module for it."""
        if self.held.architecture is not None:
            return self.held.module(model, plan)
        return units_of(plan, self.counts).module(model, plan)

    def accumulator(self) -> AnswerSum:
        """An empty place for the client's answers."""
        return AnswerSum()

    def cost(self, model: nn.Module, plan: Plan, example: Any, *, capacity: float) -> Cost:
        """What it costs a device: as any slice of its size."""
        if self.held.architecture is not None:
            return self.held.cost(model, plan, example, capacity=capacity)
        return units_of(plan, self.counts).cost(model, plan, example, capacity=capacity)
