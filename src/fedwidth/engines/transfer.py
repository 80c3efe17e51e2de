"""An index as plain arrays, for workers that hold the plan already: each tensor would go through a file of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedwidth.core.index import Index
from fedwidth.plan.plan import Plan

Array = NDArray[np.generic]


def plain(part: Any) -> Any:
    """A part as it is sent to workers: an index without its plan, and any other kind as it is."""
    return PlainIndex.of(part) if isinstance(part, Index) else part


def restored(sent: Any, plan: Plan) -> Any:
    """The part that was sent."""
    return sent.index(plan) if isinstance(sent, PlainIndex) else sent


@dataclass(frozen=True)
class PlainIndex:
    """An index without its plan, which workers have already."""

    counts: dict[str, int]
    units: dict[str, Array] | None
    kept: dict[str, tuple[Array, ...]]

    @classmethod
    def of(cls, index: Index) -> PlainIndex:
        """Units where they say everything, else all positions."""
        if index.units is not None:
            return cls(index.counts, {name: units.numpy() for name, units in index.units.items()}, {})
        return cls(index.counts, None, {name: tuple(k.numpy() for k in kept) for name, kept in index.items()})

    def index(self, plan: Plan) -> Index:
        """The index, for this plan."""
        if self.units is not None:
            return Index.of_units(plan, {name: torch.tensor(units) for name, units in self.units.items()})
        kept = {name: tuple(torch.tensor(k) for k in dims) for name, dims in self.kept.items()}
        return Index(plan, kept, counts=self.counts)
