"""What it took to reach an accuracy: rounds, bytes, and time on simulated devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedwidth.evaluation.samples import samples_to_report
from fedwidth.objectives.metric import measure_of


@dataclass(frozen=True)
class Reached:
    """What a run had spent when it first reached an accuracy."""

    round: int
    sent: float
    """The bytes sent to clients and back."""
    device_seconds: float | None
    """The seconds that simulated devices took; None where no device time was simulated."""


def reach(lines: Sequence[Mapping[str, Any]], target: float) -> Reached | None:
    """What the first rounds took until this accuracy, or one as good, was measured; None where it never was.

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
    measured = {name for line in lines for name, value in line.items() if value is not None}
    name = samples_to_report(measured, measure.name).key(measure.name)
    for position, line in enumerate(lines):
        value = line.get(name)
        if value is not None and measure.sign * value >= measure.sign * target:
            so_far = lines[: position + 1]
            simulated = all(line.get("device_seconds") is not None for line in so_far)
            return Reached(
                line["round"],
                sum(line["bytes_down"] + line["bytes_up"] for line in so_far),
                sum(line["device_seconds"] for line in so_far) if simulated else None,
            )
    return None
