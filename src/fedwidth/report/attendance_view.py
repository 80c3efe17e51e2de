"""Who was in, late, refused or in quarantine, and why: of every deployment, and of simulated runs with absentees."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fedwidth.report.runs import Run, number
from fedwidth.watching.audit import NAME, AuditLog
from fedwidth.watching.presence import STATES, enrolled_in, read_devices

MAX_DEVICES, MAX_ROUNDS, MAX_EVENTS = 200, 12, 20
"""How many devices, of the last rounds and of the last events the page shows."""


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
    events = [] if enrolled is None else list(AuditLog(deployment / NAME).lines())
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
