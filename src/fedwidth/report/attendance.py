"""Who was to train in each round of a run, and who did, as its metrics say: sub-models depend on the whole cohort."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedwidth.report.runs import Run, number


@dataclass(frozen=True)
class Attendance:
    """Who was to train in a round, and who did."""

    cohort: list[tuple[int, float]]
    """Every client that was asked, in order, with its capacity: sub-models were chosen for all of them."""
    trained: frozenset[int]
    """The clients whose work counted."""


def read_attendances(run: Run) -> list[Attendance]:
    """Who was asked and who trained in each round, up to the first round that was not written down.

    A line names the whole cohort where clients were absent. Runs of earlier versions do not: there those that trained
    are taken for the cohort, which is right for methods that give all clients of one capacity the same units.
    """
    found = []
    for round, line in enumerate(run.metrics, start=1):
        trained = _pairs(line.get("clients"), line.get("capacities"))
        cohort = _read_cohort(line["cohort"]) if "cohort" in line else trained
        if line["round"] != round or trained is None or cohort is None:
            break
        found.append(Attendance(cohort, frozenset(client for client, _ in trained)))
    return found


def _read_cohort(rows: Any) -> list[tuple[int, float]] | None:
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 2 for row in rows):
        return None
    return _pairs([client for client, _ in rows], [capacity for _, capacity in rows])


def _pairs(clients: Any, capacities: Any) -> list[tuple[int, float]] | None:
    """Clients with their capacities; None where that is not what was written down."""
    if not isinstance(clients, list) or not isinstance(capacities, list) or len(clients) != len(capacities):
        return None
    pairs = [(number(client), number(capacity)) for client, capacity in zip(clients, capacities, strict=True)]
    if not all(math.isfinite(client) and 0 < capacity <= 1 for client, capacity in pairs):
        return None
    return [(int(client), capacity) for client, capacity in pairs]
