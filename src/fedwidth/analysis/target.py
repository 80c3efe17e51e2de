"""What it took to reach an accuracy: rounds, bytes, and time on simulated devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedwidth.evaluation.samples import samples_to_report
from fedwidth.objectives.metric import measure_of


@dataclass(frozen=True)
class Reached:
    """What a run had spent when it first reached an accuracy."""

    round: int
    sent: float | None
    """The bytes sent to clients and back; None where a line does not say them."""
    device_seconds: float | None
    """The seconds that simulated devices took; None where no device time was simulated."""


def reach(lines: Sequence[Mapping[str, Any]], target: float) -> Reached | None:
    """What the first rounds took until this accuracy, or one as good, was measured; None where it never was.

    What is no number in a line was not measured.

    >>> lines = [
    ...     {"round": 1, "bytes_down": 5, "bytes_up": 5, "device_seconds": 2.0},
    ...     {"round": 2, "bytes_down": 5, "bytes_up": 7, "device_seconds": 3.0, "global_accuracy": 0.8},
    ... ]
    >>> reach(lines, 0.8)
    Reached(round=2, sent=22, device_seconds=5.0)
    >>> reach(lines, 0.9) is None
    True
    """
    measure = measure_of(lines)
    measured = {name for line in lines for name, value in line.items() if _number(value) is not None}
    name = samples_to_report(measured, measure.name).key(measure.name)
    for position, line in enumerate(lines):
        if (value := _number(line.get(name))) is not None and measure.sign * value >= measure.sign * target:
            so_far = lines[: position + 1]
            return Reached(line["round"], _sum(so_far, "bytes_down", "bytes_up"), _sum(so_far, "device_seconds"))
    return None


def _sum(lines: Sequence[Mapping[str, Any]], *names: str) -> float | None:
    """What lines say under these names, together; None where one lacks it."""
    found = [_number(line.get(name)) for line in lines for name in names]
    known = [value for value in found if value is not None]
    return sum(known) if len(known) == len(found) else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_number else None
