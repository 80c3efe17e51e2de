"""What the runs of a page measure. In a report the metric of a run, whatever it is, stands under the names of accuracy.

So every view reads `global_accuracy` and the like, and `Run.measure` says what that is, in which unit it is told and
which way is better. A page tells one metric: that of its first run. Runs with another one are listed without numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fedwidth.evaluation.widths import SEVERAL
from fedwidth.objectives.metric import ACCURACY, Measure

PREFIXES = ("global", "best_global", "local", "validation", "best_validation", "capacity", *SEVERAL)
SUFFIXES = ("", "_mean", "_spread")


def measure_in(tables: Iterable[Mapping[str, Any]]) -> Measure:
    """What the first of these tables that says so measures; whatever a file holds there must make sense."""
    for table in tables:
        facts = table.get("metric")
        if not isinstance(facts, Mapping):
            continue
        name, title = facts.get("name"), facts.get("title")
        if isinstance(name, str) and name:
            higher, percent = facts.get("higher_is_better") is not False, facts.get("percent") is True
            return Measure(name, title if isinstance(title, str) and title else name, higher, percent)
    return ACCURACY


def as_accuracy(table: dict[str, Any], measure: Measure) -> dict[str, Any]:
    """A line of the metrics, or a summary, with the metric under the names of accuracy.

    >>> error = Measure("mse", "mean squared error")
    >>> found = as_accuracy({"round": 1, "global_mse": 0.5, "together_mse": 0.4}, error)
    >>> found["global_accuracy"], found["together_accuracy"]
    (0.5, 0.4)
    """
    if measure.name == ACCURACY.name:
        return table
    names = {f"{p}_{measure.name}{s}": f"{p}_{ACCURACY.name}{s}" for p in PREFIXES for s in SUFFIXES}
    names[measure.name] = ACCURACY.name  # of a client's row
    found = {names.get(key, key): value for key, value in table.items()}
    return {**found, "metric": replace(measure, name=ACCURACY.name).facts()}
