"""A task: one client's work in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.errors import SelectionError


@dataclass(frozen=True)
class Task:
    """One client's work in one round."""

    client: int
    capacity: float
    part: Any
    """What it trains: an `Index`, or a `Part` of another kind."""
    place: int
    """The client's place in the cohort."""
    sends: Mapping[str, Mapping[str, Tensor] | float] = field(default_factory=dict)
    """What it is sent beside its sub-model: numbers, or tensors of the full model's shapes, cut like the sub-model."""
    single: bool = False
    """Whether its update is wanted by itself, not added to those of others that hold the same."""

    @cached_property
    def index(self) -> Index:
        """The part as an index."""
        if not isinstance(self.part, Index):
            raise SelectionError(f"client {self.client} holds a {type(self.part).__name__}, not an index")
        return self.part

    @cached_property
    def cohort(self) -> str:
        """Updates of tasks with one cohort are added up."""
        return f"{self.part.key} {self.client}" if self.single else str(self.part.key)
