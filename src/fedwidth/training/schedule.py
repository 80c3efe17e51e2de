"""The learning rate of clients over the rounds of a run."""

from __future__ import annotations

import math

from fedwidth.settings import TrainingSettings


def learning_rate(settings: TrainingSettings, round: int, rounds: int) -> float:
    """The learning rate of a round (all clients of a round use one).

    >>> steps = TrainingSettings(lr=1.0, schedule="multistep", milestones=[10, 20], decay=0.1)
    >>> [round_ for round_ in (0, 9, 10, 20) if learning_rate(steps, round_, 30) == 1.0]
    [0, 9]
    """
    match settings.schedule:
        case "multistep":
            return float(settings.lr * settings.decay ** sum(round >= m for m in settings.milestones))
        case "exponential":
            return float(settings.lr * settings.decay**round)
        case "cosine":
            return float(settings.lr * (1 + math.cos(math.pi * round / rounds)) / 2)
        case _:
            return settings.lr
