"""Who was to train in each round of a run, who did, and why the others did not, as its metrics say.

Sub-models depend on the whole cohort, so coverage is counted with it; and whoever runs a deployment wants to see who is
in, late, refused or in quarantine.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from fedwidth.report.runs import Run, number
from fedwidth.watching.audit import NAME, AuditLog
from fedwidth.watching.presence import STATES, enrolled_in, read_devices
from fedwidth.watching.rounds import ROUND

MAX_DEVICES, MAX_ROUNDS, MAX_EVENTS = 200, 12, 20
"""How many devices, of the last rounds and of the last events the page shows."""


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


def attendance_view(run: Run) -> dict[str, Any] | None:
    """What an operator wants to see of a run; None where everybody was always there and it is no deployment."""
    deployment = run.folder.parent
    enrolled = enrolled_in(deployment) if run.folder.name == "run" else None
    if enrolled is None and not any(line.get("absent") for line in run.metrics):
        return None
    devices = read_devices(run.metrics, enrolled)
    worst = {state: place for place, state in enumerate(STATES)}
    shown = sorted(devices, key=lambda device: (-worst[device.state], device.client))
    states = Counter(device.state for device in devices)
    noted = [] if enrolled is None else list(AuditLog(deployment / NAME).lines())
    events = [line for line in noted if line["event"] != ROUND]  # rounds are shown with more than the log has
    return {
        "deployment": enrolled is not None,
        "states": [[state, states[state]] for state in STATES if states[state]],
        "devices": [device.facts() for device in shown[:MAX_DEVICES]],
        "more": max(0, len(devices) - MAX_DEVICES),
        "rounds": [_round(line) for line in reversed(run.metrics[-MAX_ROUNDS:])],
        "events": [[str(line.get("time", "")), line["event"], _facts(line)] for line in reversed(events[-MAX_EVENTS:])],
    }


def _round(line: dict[str, Any]) -> dict[str, Any]:
    absent, clients = line.get("absent"), line.get("clients")
    absent = absent if isinstance(absent, dict) else {}
    clients = clients if isinstance(clients, list) else []
    return {
        "round": line["round"],
        "trained": len(clients),
        "absent": [[str(client), str(why)] for client, why in absent.items()],
        "bytes": number(line.get("bytes_down")) + number(line.get("bytes_up")),
    }


def _facts(line: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in line.items() if name not in ("time", "event", "previous"))
