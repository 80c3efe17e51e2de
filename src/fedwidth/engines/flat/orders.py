"""The order in which a client takes its samples in a round: drawn from (seed, round, client), whatever the state is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from fedwidth.engines.flat.layout import copy_to_device
from fedwidth.methods import Task
from fedwidth.randomness import torch_generator
from fedwidth.settings import TrainingSettings
from fedwidth.training.batches import one_epoch, order_generator
from fedwidth.training.client import Trainer
from fedwidth.training.narrower import draw_widths

NO_SAMPLE = -1
"""Stands in an order where a batch is shorter than the others."""


class Order(NamedTuple):
    """Which samples a client takes in each step of a round, and how its batches are changed and masked."""

    samples: Tensor
    """Sample numbers of each step [steps, batch], on the CPU; `NO_SAMPLE` where a batch is short."""
    lengths: tuple[int, ...]
    """How many samples each batch has."""
    draws: Tensor | None
    """How each sample is augmented [steps, batch, 3], or None where none is."""
    absent: Tensor | None
    """True for the classes the client lacks, on the device; None where no class is masked."""
    counted: Tensor | None = None
    """1 for the classes whose rows the client's update counts for and 0 for others, on the device; None: for all."""
    probes: int = 0
    """The number of batches at the beginning over which only the gradient is gathered."""
    widths: tuple[float, ...] = ()
    """The width of each step, where the client's rule draws them."""

    @property
    def steps(self) -> int:
        """The number of local steps that change the weights."""
        return len(self.lengths) - self.probes


def draw_orders(trainer: Trainer, tasks: Sequence[Task], round: int) -> list[Order]:
    """The orders of a round's clients. They do not depend on the state, so they may be drawn beforehand."""
    absent, counted = _absent_classes(trainer, tasks), _counted_classes(trainer, tasks)
    found = []
    for task, own, counts in zip(tasks, absent, counted, strict=True):
        samples, lengths, draws = draw_order(trainer, task.client, round)
        drawn = draw_widths(trainer, task, round) if trainer.rule.local.widths is not None else ()
        widths = tuple(islice(drawn, len(lengths)))
        found.append(Order(samples, lengths, draws, own, counts, count_probes(trainer, task.client), widths))
    return found


def draw_order(trainer: Trainer, client: int, round: int) -> tuple[Tensor, tuple[int, ...], Tensor | None]:
    """A client's sample numbers [steps, batch], the length of each batch, and how each sample is augmented."""
    settings, samples = trainer.settings, trainer.partition[client]
    order = shuffle_into_batches(samples, settings.training, order_generator(settings.seed, round, client))
    if trainer.rule.probes:
        once = one_epoch(settings.training)
        first = shuffle_into_batches(samples, once, order_generator(settings.seed, round, client))
        order = torch.cat([first, order])
    lengths = batch_lengths(order)
    return order, lengths, _augmentation(order, lengths, trainer, client, round)


def shuffle_into_batches(samples: Tensor, settings: TrainingSettings, generator: torch.Generator) -> Tensor:
    """The batches of `training.batches` as one matrix [steps, batch], short ones filled up with `NO_SAMPLE`.

    >>> samples = torch.tensor([7, 8, 9])
    >>> shuffle_into_batches(samples, TrainingSettings(batch_size=2), torch.Generator().manual_seed(0)).tolist()
    [[9, 7], [8, -1]]
    """
    per_epoch = math.ceil(len(samples) / settings.batch_size)
    steps = settings.steps or settings.epochs * per_epoch
    filling = samples.new_full((per_epoch * settings.batch_size - len(samples),), NO_SAMPLE)
    epochs = [
        torch.cat([samples[torch.randperm(len(samples), generator=generator)], filling])
        for _ in range(math.ceil(steps / per_epoch))
    ]
    return torch.cat(epochs).view(-1, settings.batch_size)[:steps]


def batch_lengths(order: Tensor) -> tuple[int, ...]:
    """How many samples each batch of an order has.

    >>> batch_lengths(torch.tensor([[9, 7], [8, NO_SAMPLE]]))
    (2, 1)
    """
    return tuple((order != NO_SAMPLE).sum(1).tolist())


def count_probes(trainer: Trainer, client: int) -> int:
    """The number of batches over which a client's gradient is gathered before it trains: one epoch, or none."""
    if not trainer.rule.probes:
        return 0
    return math.ceil(trainer.partition.size(client) / trainer.settings.training.batch_size)


def _augmentation(order: Tensor, lengths: Sequence[int], trainer: Trainer, client: int, round: int) -> Tensor | None:
    """The random crops and flips that the serial engine draws for these batches."""
    transform = trainer.data.transform
    if not (trainer.settings.training.augment and transform.augments):
        return None
    generator = torch_generator(trainer.settings.seed, "augment", round, client)
    result = torch.zeros(*order.shape, 3, dtype=torch.long)
    for row, length in zip(result, lengths, strict=True):
        row[:length] = transform.draw(length, generator)
    return result


def _absent_classes(trainer: Trainer, tasks: Sequence[Task]) -> list[Tensor | None]:
    """The classes each client lacks."""
    return _moved_together([trainer.absent(task.client, torch.device("cpu")) for task in tasks], trainer.device)


def _counted_classes(trainer: Trainer, tasks: Sequence[Task]) -> list[Tensor | None]:
    """The classes whose rows each client's update counts for."""
    classes = trainer.data.classes
    if not (trainer.settings.server.label_rows and trainer.plan.label_axes):  # then labels need not be known
        return [None] * len(tasks)
    found: list[Tensor | None] = []
    for task in tasks:
        labels = trainer.partition.labels[task.client]
        found.append(
            torch.zeros(classes, dtype=torch.float64).index_fill_(0, labels, 1.0) if len(labels) < classes else None
        )
    return _moved_together(found, trainer.device)


def _moved_together(rows: Sequence[Tensor | None], device: torch.device) -> list[Tensor | None]:
    """Rows of equal length on the device, moved there with one copy."""
    known = [row for row in rows if row is not None]
    moved = iter(copy_to_device(torch.stack(known), device)) if known else iter(())
    return [None if row is None else next(moved) for row in rows]
