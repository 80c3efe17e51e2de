"""Noticing that a run gets worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedwidth.evaluation.samples import samples_to_choose_by

LOOK_BACK = 5
"""Evaluations among which the best one is looked for: a run that has slowly become worse does not sound for ever."""


def fall_of(lines: Sequence[Mapping[str, Any]], now: Mapping[str, Any], points: float) -> float | None:
    """By how many points the accuracy is below the best of the last evaluations, where that is more than `points`.

    >>> lines = [{"global_accuracy": 0.5}, {"global_accuracy": 0.9}, {"train_loss": 1.0}]
    >>> fall_of(lines, {"global_accuracy": 0.7}, points=10)
    20.0
    >>> fall_of(lines, {"global_accuracy": 0.85}, points=10), fall_of(lines, {"global_accuracy": 0.1}, points=0)
    (None, None)
    """
    key = samples_to_choose_by(now).key()
    measured = [line[key] for line in lines if line.get(key) is not None][-LOOK_BACK:]
    if not points or not measured:
        return None
    fall = 100 * (max(measured) - now[key])
    return round(fall, 2) if not fall <= points else None  # an accuracy that is no number is worth an alarm, too
