"""What the flat engines hand to whoever trains: a client's start vector, the order of its samples, its settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fedwidth.engines.flat.layout import SubLayout, send
from fedwidth.methods import Task
from fedwidth.randomness import torch_generator
from fedwidth.settings import TrainingSettings
from fedwidth.training.batches import one_epoch, order_generator
from fedwidth.training.client import Trainer
from fedwidth.training.schedule import learning_rate

Size = tuple[float, tuple[tuple[str, int], ...]]
"""Capacity (the scaler's rate is part of a captured step) and units kept per group."""

NOBODY = -1
"""In an order: no sample (a last batch is short)."""


class Order(NamedTuple):
    """What a client trains on in a round, whatever state it begins with."""

    samples: Tensor
    """Sample numbers of each step [steps, batch], on the CPU; `NOBODY` where a batch is short."""
    lengths: tuple[int, ...]
    """Samples in each batch."""
    draws: Tensor | None
    """Augmentation of each sample [steps, batch, 3], or None."""
    absent: Tensor | None
    """True for the classes it lacks, on the device; None where nothing is masked."""
    probes: int = 0
    """Batches at the beginning over which only the gradient is gathered."""

    @property
    def steps(self) -> int:
        """Local steps that train."""
        return len(self.lengths) - self.probes


@dataclass(frozen=True)
class Job:
    """One client's local training."""

    trainer: Trainer
    task: Task
    sub: SubLayout
    start: Tensor
    """The sub-model as a vector; not to be written to."""
    order: Order
    learning_rate: float
    round: int
    others: Mapping[str, Tensor] = field(default_factory=dict)
    """What training may change beside the vector (counts of batches)."""
    sent: Mapping[str, Tensor] = field(default_factory=dict)
    """What the client was sent beside its sub-model, as vectors like it or numbers."""
    run: str = ""
    """The run the client belongs to, where several train together."""

    @property
    def size(self) -> Size:
        """What shares a shape, and so a captured step or a stack."""
        return size_of(self.task)


@dataclass(frozen=True)
class Done:
    """A trained client; `flat` is valid until the next one is asked for."""

    job: Job
    flat: Tensor
    loss_sum: Tensor
    others: Mapping[str, Tensor] = field(default_factory=dict)
    """What became of the job's others."""
    reports: Mapping[str, Tensor] = field(default_factory=dict)
    """What the client reports beside its sub-model, as vectors like it."""


def size_of(task: Task) -> Size:
    """Capacity and units kept per group."""
    return task.capacity, task.index.size


def order_of(samples: Tensor, settings: TrainingSettings, generator: torch.Generator) -> Tensor:
    """The batches of `client.batches` as one matrix [steps, batch], short ones filled up with `NOBODY`.

    >>> samples = torch.tensor([7, 8, 9])
    >>> order_of(samples, TrainingSettings(batch_size=2), torch.Generator().manual_seed(0)).tolist()
    [[9, 7], [8, -1]]
    """
    per_epoch = math.ceil(len(samples) / settings.batch_size)
    steps = settings.steps or settings.epochs * per_epoch
    filling = samples.new_full((per_epoch * settings.batch_size - len(samples),), NOBODY)
    epochs = [
        torch.cat([samples[torch.randperm(len(samples), generator=generator)], filling])
        for _ in range(math.ceil(steps / per_epoch))
    ]
    return torch.cat(epochs).view(-1, settings.batch_size)[:steps]


def lengths_of(order: Tensor) -> tuple[int, ...]:
    """Samples in each batch of an order.

    >>> lengths_of(torch.tensor([[9, 7], [8, NOBODY]]))
    (2, 1)
    """
    return tuple((order != NOBODY).sum(1).tolist())


def drawn_by(trainer: Trainer, client: int, round: int) -> tuple[Tensor, tuple[int, ...], Tensor | None]:
    """What a client draws from (seed, round, client): its order, the lengths of its batches, and its augmentation."""
    settings, samples = trainer.settings, trainer.partition[client]
    order = order_of(samples, settings.training, order_generator(settings.seed, round, client))
    if trainer.rule.probes:
        first = order_of(samples, one_epoch(settings.training), order_generator(settings.seed, round, client))
        order = torch.cat([first, order])
    lengths = lengths_of(order)
    return order, lengths, _augmentation(order, lengths, trainer, client, round)


def probes_of(trainer: Trainer, client: int) -> int:
    """Batches over which a client's gradient is gathered before it trains: one epoch, or none."""
    if not trainer.rule.probes:
        return 0
    return math.ceil(trainer.partition.size(client) / trainer.settings.training.batch_size)


def _augmentation(order: Tensor, lengths: Sequence[int], trainer: Trainer, client: int, round: int) -> Tensor | None:
    """The serial engine's random crops and flips for these batches."""
    transform = trainer.data.transform
    if not (trainer.settings.training.augment and transform.augments):
        return None
    generator = torch_generator(trainer.settings.seed, "augment", round, client)
    result = torch.zeros(*order.shape, 3, dtype=torch.long)
    for row, length in zip(result, lengths, strict=True):
        row[:length] = transform.draw(length, generator)
    return result


def orders_of(trainer: Trainer, tasks: Sequence[Task], round: int) -> list[Order]:
    """What each client draws and lacks: needs no state, so may be done beforehand."""
    absent = _absent(trainer, tasks)
    return [
        Order(*drawn_by(trainer, task.client, round), own, probes_of(trainer, task.client))
        for task, own in zip(tasks, absent, strict=True)
    ]


def make_jobs(
    trainer: Trainer,
    tasks: Sequence[Task],
    subs: Sequence[SubLayout],
    starts: Sequence[Tensor],
    *,
    orders: Sequence[Order],
    round: int,
) -> list[Job]:
    """A job for every task, in task order."""
    settings = trainer.settings
    rate = learning_rate(settings.training, round, settings.rounds)
    return [
        Job(trainer, task, sub, start, order, rate, round)
        for task, sub, start, order in zip(tasks, subs, starts, orders, strict=True)
    ]


def _absent(trainer: Trainer, tasks: Sequence[Task]) -> list[Tensor | None]:
    """The classes each client lacks, moved to the device together."""
    lacks = [trainer.absent(task.client, torch.device("cpu")) for task in tasks]
    known = [each for each in lacks if each is not None]
    moved = iter(send(torch.stack(known), trainer.device)) if known else iter(())
    return [None if each is None else next(moved) for each in lacks]
