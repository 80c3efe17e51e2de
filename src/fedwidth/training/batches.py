"""Which of its samples a client sees in each local step of a round, in which order, and how many that makes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fedwidth.randomness import torch_generator
from fedwidth.settings import TrainingSettings


def batches(samples: Tensor, settings: TrainingSettings, generator: torch.Generator) -> Iterator[Tensor]:
    """Sample numbers of each local step: shuffled anew each epoch, the last batch of an epoch may be short."""
    per_epoch = math.ceil(len(samples) / settings.batch_size)
    for step in range(count_steps(len(samples), settings)):
        number = step % per_epoch
        if number == 0:
            shuffled = samples[torch.randperm(len(samples), generator=generator)]
        yield shuffled[number * settings.batch_size : (number + 1) * settings.batch_size]


def count_steps(samples: int, settings: TrainingSettings) -> int:
    """How many local steps a client with so many samples takes in a round."""
    return settings.steps or settings.epochs * math.ceil(samples / settings.batch_size)


def count_passes(samples: int, settings: TrainingSettings) -> int:
    """Training samples that a client with so many sees in a round, each as often as it is seen.

    >>> count_passes(25, TrainingSettings(batch_size=10, epochs=2)), count_passes(25, TrainingSettings(steps=4))
    (50, 35)
    """
    epochs, steps = divmod(count_steps(samples, settings), math.ceil(samples / settings.batch_size))
    return epochs * samples + steps * settings.batch_size


def with_single_batch(sizes: Tensor, settings: TrainingSettings) -> Tensor:
    """The clients, by how many samples each has, that train on a batch of one sample.

    >>> with_single_batch(torch.tensor([8, 9, 1, 12]), TrainingSettings(batch_size=4)).tolist()
    [1, 2]
    """
    per_epoch = (sizes + settings.batch_size - 1) // settings.batch_size
    reached = per_epoch <= settings.steps if settings.steps else torch.ones_like(sizes, dtype=torch.bool)
    return torch.nonzero(reached & ((sizes - 1) % settings.batch_size == 0)).flatten()


def one_epoch(settings: TrainingSettings) -> TrainingSettings:
    """The settings of a single pass over a client's data."""
    return replace(settings, epochs=1, steps=0)


def order_generator(seed: int, round: int, client: int) -> torch.Generator:
    """The generator that shuffles a client's samples in a round."""
    return torch_generator(seed, "order", round, client)
