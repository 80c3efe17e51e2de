"""Which width each local step of a client trains, where its rule draws one at every step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING

from fedwidth.core.index import Index
from fedwidth.methods import Task
from fedwidth.randomness import numpy_generator

if TYPE_CHECKING:
    from fedwidth.training.client import Trainer


def draw_widths(trainer: Trainer, task: Task, round: int) -> Iterator[float]:
    """The width of each step of a client, without end: drawn from (seed, round, client), or always its capacity."""
    widths = trainer.rule.local.widths
    if widths is None:
        return repeat(task.capacity)
    generator = numpy_generator(trainer.settings.seed, "width", round, task.client)
    choices = list(widths(task.capacity, trainer.rule.options))
    return (float(generator.choice(choices)) for _ in repeat(None))


def narrower_index(trainer: Trainer, width: float, round: int) -> Index:
    """What the sub-model of this width holds in a round; it lies inside those of wider clients."""
    found: Index = trainer.method.select(trainer.plan, capacity=width, round=round, seed=trainer.settings.seed)
    return found
