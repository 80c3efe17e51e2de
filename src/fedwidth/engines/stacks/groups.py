"""Who trains in a stack: lots of clients, their vectors, and the portions that train side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fedwidth.engines.flat.jobs import Size
from fedwidth.engines.flat.layout import SubLayout
from fedwidth.methods import Task

Shape = tuple[Size, tuple[int, ...] | None]
"""What shares a stack: the size, and with batch norm the samples in each batch."""


class Trained(NamedTuple):
    """Clients of a stack that have trained, one in each row."""

    vectors: Tensor
    losses: Tensor
    """Sums over their steps."""
    reports: Mapping[str, Tensor]
    """What they report beside their sub-models."""


@dataclass(frozen=True)
class Lot:
    """Clients of one size, one row each, those with the most steps first."""

    tasks: Sequence[Task]
    rounds: Sequence[int]
    """Of each client: runs that train as one batch may be in different ones."""
    first: Sequence[int]
    """Each client's first row in the samples' orders."""
    steps: Sequence[int]
    rates: Sequence[float]
    absent: Sequence[Tensor | None]
    """Classes a client lacks, where they are masked."""
    probes: Sequence[int]
    """Steps at the beginning over which only each client's gradient is gathered."""
    samples: Sequence[int]
    """How many each client has."""
    sent: Sequence[Mapping[str, Tensor]]
    """What each client was sent beside its sub-model."""
    lengths: Sequence[int]
    """Samples in the batch of each step that has most: of the widest batch, or (batch norm) of every batch."""

    def __getitem__(self, part: slice) -> Lot:
        cut = {f.name: getattr(self, f.name)[part] for f in fields(self) if f.name != "lengths"}
        return Lot(**cut, lengths=self.lengths)


@dataclass(frozen=True)
class Group:
    """A lot with the vectors of its clients, which training changes in place."""

    shape: Shape
    sub: SubLayout
    rows: Tensor
    lot: Lot
    losses: Tensor
    """Sums over each client's steps, once it has trained."""
    reports: dict[str, Tensor]
    """What each client reports beside its sub-model, once it has trained: rows like those of the vectors."""

    @classmethod
    def of(cls, shape: Shape, sub: SubLayout, rows: Tensor, lot: Lot) -> Group:
        """Clients that have not trained yet."""
        return cls(shape, sub, rows, lot, torch.empty(len(rows), dtype=rows.dtype, device=rows.device), {})


@dataclass(frozen=True)
class Portion:
    """Neighbours of a group that train in one stack."""

    group: Group
    part: slice
    room: int
    """Rows of the stack: as many as there are neighbours, or more."""
    number: int
    """Of the stack it takes, among those of its shape: neighbours that train side by side take different ones."""

    @property
    def rows(self) -> Tensor:
        """Their vectors."""
        return self.group.rows[self.part]

    @cached_property
    def lot(self) -> Lot:
        """What their training needs."""
        return self.group.lot[self.part]

    @property
    def numbers(self) -> int:
        """In all vectors of the stack."""
        return self.room * self.group.sub.size

    def put(self, trained: Trained) -> None:
        """Take what was trained."""
        self.rows.copy_(trained.vectors)
        self.group.losses[self.part].copy_(trained.losses)
        for name, rows in trained.reports.items():
            if name not in self.group.reports:
                self.group.reports[name] = torch.zeros_like(self.group.rows)
            self.group.reports[name][self.part].copy_(rows)
