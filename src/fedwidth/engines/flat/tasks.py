"""What flat engines hand to a pool and get back: a task with its sub-model as a vector, and the trained vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedwidth.engines.flat.layout import SubLayout
from fedwidth.engines.flat.orders import Order
from fedwidth.methods import Task
from fedwidth.training.client import Trainer
from fedwidth.training.schedule import learning_rate

Size = tuple[float, tuple[tuple[str, int], ...]]
"""A capacity and the units kept per group. The capacity counts because the scaler's rate is part of a captured step."""


@dataclass(frozen=True)
class FlatTask:
    """One client's local training, from a sub-model that is one vector."""

    trainer: Trainer
    task: Task
    sub: SubLayout
    start: Tensor
    """The sub-model as a vector, which several clients may share: it must not be written to."""
    order: Order
    learning_rate: float
    round: int
    others: Mapping[str, Tensor] = field(default_factory=dict)
    """The tensors that training may change beside the vector (counts of batches)."""
    sent: Mapping[str, Tensor] = field(default_factory=dict)
    """What the client was sent beside its sub-model, as vectors like it or numbers."""
    run: str = ""
    """The run the client belongs to, where several train together."""

    @property
    def size(self) -> Size:
        """Tasks of one size can share a captured step or a stack."""
        return size_of(self.task)


@dataclass(frozen=True)
class FlatUpdate:
    """What a client made of its task; the vector `flat` is valid until the next update is asked for."""

    flat_task: FlatTask
    flat: Tensor
    loss_sum: Tensor
    others: Mapping[str, Tensor] = field(default_factory=dict)
    """The task's `others` after the training."""
    reports: Mapping[str, Tensor] = field(default_factory=dict)
    """What the client reports beside its sub-model, as vectors like it."""


def size_of(task: Task) -> Size:
    """The capacity of a task and the units its index keeps per group."""
    return task.capacity, task.index.size


def make_flat_tasks(
    trainer: Trainer,
    tasks: Sequence[Task],
    subs: Sequence[SubLayout],
    starts: Sequence[Tensor],
    *,
    orders: Sequence[Order],
    round: int,
) -> list[FlatTask]:
    """A flat task for every task, in the same order."""
    settings = trainer.settings
    rate = learning_rate(settings.training, round, settings.rounds)
    return [
        FlatTask(trainer, task, sub, start, order, rate, round)
        for task, sub, start, order in zip(tasks, subs, starts, orders, strict=True)
    ]
