"""What flat engines hand to a pool and get back: a task with its sub-model as a vector, and the trained vector."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedwidth.engines.flat.orders import Order
from fedwidth.engines.flat.tensor_layout import TensorLayout
from fedwidth.methods import Task
from fedwidth.training.client import Trainer
from fedwidth.training.schedule import learning_rate

Size = tuple[float, Hashable]
"""A capacity and the size of a part. The capacity counts because the scaler's rate is part of a captured step."""


@dataclass(frozen=True)
class FlatTask:
    """One client's local training, from a sub-model that is one vector."""

    trainer: Trainer
    task: Task
    sub: TensorLayout
    start: Tensor
    """The sub-model as a vector, which several clients may share: it must not be written to."""
    others: Mapping[str, Tensor]
    """The tensors that training may change beside the vector (counts of batches)."""
    order: Order
    learning_rate: float
    round: int
    sent: Mapping[str, Tensor] = field(default_factory=dict)
    """What the client was sent beside its sub-model, as vectors like it or numbers."""
    run: str = ""
    """The run the client belongs to, where several train together."""
    seen: int = 0
    """How many samples the client has trained with before its own."""

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


def rows_given(flat_task: FlatTask) -> dict[str, Tensor]:
    """What the client was given that has a row for each of its own samples, on the device."""
    given, trainer = flat_task.task.given, flat_task.trainer
    return {name: given[name].to(trainer.device) for name in trainer.rule.local.rows if name in given}


def size_of(task: Task) -> Size:
    """The capacity of a task and the size of its part."""
    return task.capacity, task.part.size


def make_flat_tasks(
    trainer: Trainer,
    tasks: Sequence[Task],
    subs: Sequence[TensorLayout],
    starts: Sequence[tuple[Tensor, Mapping[str, Tensor]]],
    *,
    orders: Sequence[Order],
    round: int,
) -> list[FlatTask]:
    """A flat task for every task, in the same order; a start is a vector and the tensors beside it."""
    settings = trainer.settings
    rate = learning_rate(settings.training, round, settings.rounds)
    return [
        FlatTask(trainer, task, sub, *start, order, rate, round)
        for task, sub, start, order in zip(tasks, subs, starts, orders, strict=True)
    ]
