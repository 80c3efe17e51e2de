"""A task: what one client does in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from fedwidth.core.architectures import Architecture
from fedwidth.core.index import Index
from fedwidth.errors import SelectionError
from fedwidth.plan.plan import Plan


@dataclass(frozen=True)
class Task:
    """What one client does in one round."""

    client: int
    capacity: float
    part: Any
    """What the client trains: an `Index`, or a `Part` of another kind."""
    place: int
    """The client's place in the round's cohort."""
    sends: Mapping[str, Mapping[str, Tensor] | float] = field(default_factory=dict)
    """What the client is sent beside its sub-model: numbers, or tensors of the full model's shapes, cut like it."""
    given: Mapping[str, Tensor] = field(default_factory=dict)
    """What the client is given as it is, in any shape: numbers of samples, labels."""
    single: bool = False
    """Whether the client's update is kept apart from those of other clients that hold the same part."""

    @cached_property
    def index(self) -> Index:
        """The part, if it is an index; other kinds are refused."""
        if not isinstance(self.part, Index):
            raise SelectionError(f"client {self.client} holds a {type(self.part).__name__}, not an index")
        return self.part

    @property
    def width(self) -> float:
        """The share of its network's width that the client trains: an architecture of its own, and layers of the whole
        model, are as wide as they are."""
        full = self._architecture is not None or getattr(self.part, "full_width", False)
        return 1.0 if full else self.capacity

    def plan(self, plan: Plan) -> Plan:
        """The plan of the network that the client trains, given that of the run's model."""
        return plan if self._architecture is None else self._architecture.plan

    @cached_property
    def _architecture(self) -> Architecture | None:
        held = getattr(self.part, "held", None)
        return None if held is None else held.architecture

    @cached_property
    def cohort(self) -> str:
        """The name of the sum that the update goes into: tasks with equal names are added up."""
        return f"{self.part.key} {self.client}" if self.single else str(self.part.key)
