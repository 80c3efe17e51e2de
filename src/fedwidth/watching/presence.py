"""Who of a deployment's devices is in, late, refused or in quarantine, and why: from its enrolment and its metrics."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

IN, LATE, REFUSED, GONE, QUARANTINED = "in", "late", "refused", "gone", "quarantined"
WAITING, REVOKED, SPARED = "not seen yet", "revoked", "not needed"
STATES = (IN, SPARED, LATE, GONE, REFUSED, QUARANTINED, WAITING, REVOKED)
"""What a device can be, from good to bad; an operator looks at the last ones first."""

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Device:
    """One client, as the last round that asked it left it."""

    client: int
    state: str
    why: str = ""
    """Why it did not count when it was last asked."""
    capacity: float | None = None
    """What it was last asked to train."""
    last_round: int | None = None
    """The last round that asked it."""
    trained: int = 0
    """Rounds in which its work counted."""
    missed: int = 0
    """Rounds that asked it in vain, or refused what it sent."""
    until: int | None = None
    """The last round of its quarantine."""

    def facts(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)


def read_devices(lines: Sequence[Line], enrolled: Collection[int] | None = None) -> list[Device]:
    """Every device that is enrolled or was ever asked, by its number.

    >>> lines = [{"round": 1, "clients": [0], "capacities": [1.0], "cohort": [[0, 1.0], [1, 0.5]],
    ...           "absent": {"1": "its change has norm 9, above the bound 3"}}]
    >>> [(device.client, device.state, device.why) for device in read_devices(lines, enrolled=[0, 1, 2])]
    [(0, 'in', ''), (1, 'refused', 'its change has norm 9, above the bound 3'), (2, 'not seen yet', '')]
    """
    found: dict[int, Device] = {client: Device(client, WAITING) for client in enrolled or ()}
    for line in lines:
        round, absent = int(line["round"]), _by_client(line.get("absent"))
        asked = _pairs(line.get("cohort")) or _together(line.get("clients"), line.get("capacities"))
        worked = {client for client in _numbers(line.get("clients")) if client not in absent}
        for client in [*asked, *(client for client in absent if client not in asked)]:
            old, why = found.get(client, Device(client, WAITING)), str(absent.get(client, ""))
            state = IN if client in worked else state_of(why)
            found[client] = Device(
                client,
                state,
                why,
                asked.get(client, old.capacity),
                round,
                old.trained + (state == IN),
                old.missed + (state not in (IN, SPARED)),
                old.until,
            )
        for client, last in _by_client(line.get("quarantined")).items():
            old = found.get(client, Device(client, WAITING))
            found[client] = Device(**{**asdict(old), "state": QUARANTINED, "until": int(last)})
    done = int(lines[-1]["round"]) if lines else 0
    for client, device in found.items():
        if device.until is not None and done < device.until:
            found[client] = Device(**{**asdict(device), "state": QUARANTINED})
        elif device.until is not None:  # it may take part again, and is what its last answer made of it
            state = state_of(device.why) if device.why else IN
            found[client] = Device(**{**asdict(device), "state": state, "until": None})
        if enrolled is not None and client not in enrolled:
            found[client] = Device(**{**asdict(found[client]), "state": REVOKED})
    return [found[client] for client in sorted(found)]


def state_of(why: str) -> str:
    """What a device is whose work did not count for this reason.

    >>> [state_of(why) for why in ("no answer within 60 s: it is connected, but too slow", "it is not connected",
    ...                            "it was not waited for: 2 answers are enough", "'w' holds NaN")]
    ['late', 'gone', 'not needed', 'refused']
    """
    if why.startswith("in quarantine"):
        return QUARANTINED
    if "not waited for" in why:
        return SPARED
    if "connection was lost" in why or "not connected" in why or "could not be sent" in why:
        return GONE
    if why.startswith("no answer") or "trainer" in why:
        return LATE
    if "no longer enrolled" in why:
        return REVOKED
    return REFUSED


def enrolled_in(deployment: Path) -> list[int] | None:
    """The numbers of the clients that are enrolled in a deployment's folder; None where it is none."""
    folder = deployment / "enrolled"
    if not folder.is_dir():
        return None
    found = []
    for file in folder.glob("client-*.json"):
        with suppress(OSError, ValueError, TypeError, KeyError):
            found.append(int(json.loads(file.read_text())["client"]))
    return sorted(found)


def _pairs(rows: Any) -> dict[int, float]:
    with suppress(TypeError, ValueError):
        return {int(client): float(capacity) for client, capacity in rows or ()}
    return {}


def _together(clients: Any, capacities: Any) -> dict[int, float]:
    with suppress(TypeError, ValueError):
        return {int(client): float(width) for client, width in zip(clients or (), capacities or (), strict=True)}
    return {}


def _numbers(clients: Any) -> list[int]:
    with suppress(TypeError, ValueError):
        return [int(client) for client in clients or ()]
    return []


def _by_client(table: Any) -> dict[int, Any]:
    with suppress(TypeError, ValueError, AttributeError):
        return {int(client): value for client, value in (table or {}).items()}
    return {}
