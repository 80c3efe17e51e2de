"""What the flat engines hand to whoever trains: a client's start vector, batches and settings, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedwidth.client import Trainer, absent_classes, batches, learning_rate
from fedwidth.engines.flat import SubLayout
from fedwidth.methods import Task
from fedwidth.randomness import torch_generator

Size = tuple[float, tuple[tuple[str, int], ...]]
"""Capacity (the scaler's rate is part of a captured step) and units kept per group."""


@dataclass(frozen=True)
class Job:
    """One client's local training."""

    trainer: Trainer
    task: Task
    sub: SubLayout
    start: Tensor
    """The sub-model as a vector; not to be written to."""
    inputs: Sequence[Tensor]
    targets: Sequence[Tensor]
    absent: Tensor | None
    learning_rate: float

    @property
    def size(self) -> Size:
        """What shares a shape, and so a captured step or a stack."""
        return size_of(self.task)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Samples in each batch."""
        return tuple(len(batch) for batch in self.inputs)


@dataclass(frozen=True)
class Done:
    """A trained client; `flat` is valid until the next one is asked for."""

    job: Job
    flat: Tensor
    loss_sum: Tensor


def size_of(task: Task) -> Size:
    """Capacity and units kept per group."""
    return task.capacity, tuple(task.index.counts.items())


def stage(trainer: Trainer, tasks: Sequence[Task], round: int) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Inputs and targets of every batch of every client: the serial engine's order and draws, gathered, augmented and
    normalised in one go on the device."""
    settings, seed = trainer.settings.training, trainer.settings.seed
    transform, split = trainer.data.transform, trainer.data.train
    lengths: list[list[int]] = []
    samples: list[Tensor] = []
    draws: list[Tensor] = []
    for task in tasks:
        own = list(
            batches(trainer.partition[task.client], settings, torch_generator(seed, "order", round, task.client))
        )
        lengths.append([len(batch) for batch in own])
        samples += own
        if settings.augment and transform.augments:
            augment = torch_generator(seed, "augment", round, task.client)
            draws += [transform.draw(len(batch), augment) for batch in own]
    chosen = torch.cat(samples).to(trainer.device, non_blocking=True)
    drawn = torch.cat(draws).to(trainer.device, non_blocking=True) if draws else None
    inputs = transform(split.inputs[chosen], drawn is not None, draws=drawn)
    targets = split.targets[chosen].long()
    cuts = [length for own in lengths for length in own]
    inputs_left, targets_left = iter(torch.split(inputs, cuts)), iter(torch.split(targets, cuts))
    return [([next(inputs_left) for _ in own], [next(targets_left) for _ in own]) for own in lengths]


def make_jobs(
    trainer: Trainer, tasks: Sequence[Task], subs: Sequence[SubLayout], starts: Sequence[Tensor], round: int
) -> list[Job]:
    """A job for every task, in task order."""
    settings = trainer.settings
    rate = learning_rate(settings.training, round, settings.rounds)
    jobs = []
    for task, sub, start, (inputs, targets) in zip(tasks, subs, starts, stage(trainer, tasks, round), strict=True):
        labels = trainer.partition.labels[task.client]
        absent = absent_classes(labels, trainer.data.classes, settings.training.mask, trainer.device)
        jobs.append(Job(trainer, task, sub, start, inputs, targets, absent, rate))
    return jobs
