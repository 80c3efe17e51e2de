"""Who trains in a stack: the clients of one shape with their vectors, and the segments of them that fit one stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fedwidth.engines.flat.tasks import Size
from fedwidth.engines.flat.tensor_layout import TensorLayout
from fedwidth.methods import Task

StackShape = tuple[Size, tuple[int, ...] | None, tuple[str, ...]]
"""What clients of one stack have in common: their size, with batch norm the number of samples in each batch, and what
they were given that has a row for each sample."""


class StackResult(NamedTuple):
    """What the clients of a stack have trained, one client in each row."""

    vectors: Tensor
    losses: Tensor
    """The sum of each client's losses over its steps."""
    reports: Mapping[str, Tensor]
    """What the clients report beside their sub-models."""


@dataclass(frozen=True)
class StackClients:
    """What the training of stacked clients needs: every list has an entry a client, those with the most steps first."""

    tasks: Sequence[Task]
    rounds: Sequence[int]
    """The round each client is in: runs that train as one batch may be in different ones."""
    first: Sequence[int]
    """Each client's first row in the orders of samples."""
    steps: Sequence[int]
    rates: Sequence[float]
    absent: Sequence[Tensor | None]
    """The classes each client lacks, where they are masked."""
    probes: Sequence[int]
    """The number of steps at the beginning over which only a client's gradient is gathered."""
    samples: Sequence[int]
    """How many samples each client has."""
    sent: Sequence[Mapping[str, Tensor]]
    """What each client was sent beside its sub-model."""
    lengths: Sequence[int]
    """The largest number of samples that a client's batch has: one number for all steps, or (with batch norm, where
    clients have equal batches) one for each step."""

    def __getitem__(self, span: slice) -> StackClients:
        cut = {f.name: getattr(self, f.name)[span] for f in fields(self) if f.name != "lengths"}
        return StackClients(**cut, lengths=self.lengths)


@dataclass(frozen=True)
class ShapeGroup:
    """All clients of one shape, with their vectors, which training changes in place."""

    shape: StackShape
    sub: TensorLayout
    rows: Tensor
    clients: StackClients
    losses: Tensor
    """The sum of each client's losses over its steps, once it has trained."""
    reports: dict[str, Tensor]
    """What each client reports beside its sub-model, once it has trained: rows like those of the vectors."""

    @classmethod
    def of(cls, shape: StackShape, sub: TensorLayout, rows: Tensor, clients: StackClients) -> ShapeGroup:
        """A group of clients that have not trained yet."""
        return cls(shape, sub, rows, clients, torch.empty(len(rows), dtype=rows.dtype, device=rows.device), {})


@dataclass(frozen=True)
class GroupSegment:
    """Consecutive clients of a group that train in one stack."""

    group: ShapeGroup
    span: slice
    room: int
    """The number of rows of the stack: as many as the segment has clients, or more."""
    stack_number: int
    """Which stack of its shape the segment takes: segments that train side by side take different ones."""

    @property
    def rows(self) -> Tensor:
        """The vectors of the segment's clients."""
        return self.group.rows[self.span]

    @cached_property
    def clients(self) -> StackClients:
        """What the training of the segment's clients needs."""
        return self.group.clients[self.span]

    @property
    def elements(self) -> int:
        """The number of elements of the stack's matrix of vectors."""
        return self.room * self.group.sub.size

    def put(self, result: StackResult) -> None:
        """Write what the clients have trained into the group."""
        self.rows.copy_(result.vectors)
        self.group.losses[self.span].copy_(result.losses)
        for name, rows in result.reports.items():
            if name not in self.group.reports:
                self.group.reports[name] = torch.zeros_like(self.group.rows)
            self.group.reports[name][self.span].copy_(rows)
