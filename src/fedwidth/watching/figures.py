"""A deployment in figures: what its folder says now, once for Prometheus, OpenTelemetry and whoever else asks.

Everything is read from files that the deployment writes anyway, by a process of its own: a run is not slowed down by
who watches it, and does not end with it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedwidth.watching.audit import NAME, AuditLog
from fedwidth.watching.presence import STATES, enrolled_in, read_devices


@dataclass(frozen=True)
class Figure:
    """One measurement: a name, what it means, and a value for each set of labels."""

    name: str
    help: str
    values: tuple[tuple[Mapping[str, str], float], ...]
    total: bool = False
    """Whether it only ever grows, for as long as the run's folder is the same."""


@dataclass
class Deployment:
    """The folder of a deployment, read again at every look; lines of metrics that were read are kept."""

    folder: Path
    _lines: list[dict[str, Any]] = field(default_factory=list)
    _read: tuple[int, int] = (0, 0)
    """Number and length of the metrics file as far as it was read."""

    @property
    def run(self) -> Path:
        """The folder of its run."""
        return self.folder / "run"

    def lines(self) -> list[dict[str, Any]]:
        """The rounds that are done; after a rollback those that are left."""
        path = self.run / "metrics.jsonl"
        try:
            with open(path, "rb") as file:
                status = path.stat()
                number, length = self._read
                if status.st_ino != number or status.st_size < length:
                    self._lines, length = [], 0
                file.seek(length)
                text = file.read()
        except OSError:
            self._lines, self._read = [], (0, 0)
            return []
        whole = text[: text.rfind(b"\n") + 1]
        for line in whole.splitlines():
            with suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and isinstance(found.get("round"), int):
                    self._lines.append(found)
        self._read = status.st_ino, length + len(whole)
        return self._lines

    def figures(self) -> Iterator[Figure]:
        """Everything that is measured."""
        lines = self.lines()
        last: Mapping[str, Any] = lines[-1] if lines else {}
        devices = read_devices(lines, enrolled_in(self.folder))
        states = Counter(device.state for device in devices)
        yield _one("fedwidth_round", "Rounds that are done", len(lines) and last["round"])
        yield _one("fedwidth_finished", "1 if the run has ended", float((self.run / "summary.json").exists()))
        by_state = tuple(({"state": state}, float(states[state])) for state in STATES)
        yield Figure("fedwidth_devices", "Devices by what they are: in, late, refused and so on", by_state)
        sent = {way: sum(_number(line.get(f"bytes_{way}")) for line in lines) for way in ("down", "up")}
        ways = tuple(({"direction": way}, value) for way, value in sent.items())
        yield Figure("fedwidth_bytes", "Bytes of sub-models sent to devices (down) and by them (up)", ways, total=True)
        reasons = Counter(device for line in lines for device in _table(line.get("absent")))
        absent = tuple(({"client": client}, float(number)) for client, number in sorted(reasons.items()))
        yield Figure("fedwidth_absent", "Rounds in which a client was asked and did not count", absent, total=True)
        seconds = _differences(lines)
        yield _one("fedwidth_round_seconds", "How long the last round took", seconds)
        trained = sum(len(line.get("clients") or ()) for line in lines)
        yield Figure("fedwidth_updates", "Updates that counted", (({}, float(trained)),), total=True)
        for key in ("global_accuracy", "local_accuracy", "global_loss", "train_loss"):
            known = next((line[key] for line in reversed(lines) if isinstance(line.get(key), (int, float))), None)
            if known is not None:
                yield _one(f"fedwidth_{key}", f"{key.replace('_', ' ')} as last measured", known)
        alarms = sum("alarm" in line for line in lines)
        yield Figure("fedwidth_alarms", "Evaluations at which accuracy had fallen", (({}, float(alarms)),), total=True)
        events = Counter(line["event"] for line in AuditLog(self.folder / NAME).lines())
        noted = tuple(({"event": event}, float(number)) for event, number in sorted(events.items()))
        yield Figure("fedwidth_audit_events", "Lines of the audit log", noted, total=True)


def _one(name: str, help: str, value: float) -> Figure:
    return Figure(name, help, (({}, float(value)),))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _differences(lines: list[dict[str, Any]]) -> float:
    """How long the last round took: lines say how many seconds the run has lasted."""
    times = [_number(line.get("seconds")) for line in lines[-2:]]
    return max(0.0, times[-1] - times[0]) if len(times) == 2 else (times[0] if times else 0.0)
