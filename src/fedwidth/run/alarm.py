"""The alarm: noticing that a run has become worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedwidth.evaluation.samples import samples_to_choose_by
from fedwidth.objectives.metric import Measure

LOOK_BACK = 5
"""Evaluations among which the best one is looked for: a run that has slowly become worse does not sound for ever."""


def fall_of(lines: Sequence[Mapping[str, Any]], now: Mapping[str, Any], points: float) -> float | None:
    """By how many points the model is worse than the best of the last evaluations, where that is more than `points`.

    A metric that is no share is taken as it is, not in percent.

    >>> lines = [{"global_accuracy": 0.5}, {"global_accuracy": 0.9}, {"train_loss": 1.0}]
    >>> fall_of(lines, {"global_accuracy": 0.7}, points=10)
    20.0
    >>> fall_of(lines, {"global_accuracy": 0.85}, points=10), fall_of(lines, {"global_accuracy": 0.1}, points=0)
    (None, None)
    """
    measure = Measure.of(now)
    key = samples_to_choose_by(now, measure.name).key(measure.name)
    measured = [measure.sign * line[key] for line in lines if line.get(key) is not None][-LOOK_BACK:]
    if not points or not measured:
        return None
    fall = (100 if measure.percent else 1) * (max(measured) - measure.sign * now[key])
    return round(fall, 2) if not fall <= points else None  # a value that is no number is worth an alarm, too
