"""Optional loggers: TensorBoard, MLflow, Weights & Biases; each an extra, imported only when asked for.

A logger is told every round once. tracking.json in the run's folder remembers which of the logger's runs it is, so that
`--resume` goes on in that one; rounds the logger lacks (it was killed too, or is new) come from metrics.jsonl.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from fedwidth.errors import OptionError, unknown
from fedwidth.run.checkpoint import write_whole
from fedwidth.run.folder import TRACKING, read_metrics
from fedwidth.run.tracking.loggers import BACKENDS, Backend
from fedwidth.settings import Settings

Line = dict[str, Any]


class Tracker(Protocol):
    """Takes the metrics of each round."""

    def log(self, line: Line) -> None:
        """Log one round."""

    def close(self) -> None:
        """Flush and close."""


def check_tracker(name: str) -> None:
    """Refuse a tracker that is unknown or not installed; '' is none."""
    if not name:
        return
    if name not in BACKENDS:
        raise unknown("tracker", name, BACKENDS)
    try:
        import_module(name)
    except ImportError:
        raise OptionError(f"--track {name} needs the extra: pip install 'fedwidth[{name}]'") from None


def make_tracker(name: str, title: str, settings: Settings, folder: Path) -> Tracker:
    """The tracker of this name for a run; it opens when the first round is logged.

    Refuses one that cannot be used as it is set up: no such store, no server, no key.
    """
    check_tracker(name)
    if not name:
        return _Nothing()
    try:
        return _Tracked(name, BACKENDS[name](title, settings, folder), settings.rounds, folder)
    except Exception as error:  # these packages raise whatever their own parts raise
        raise OptionError(f"--track {name} cannot be used: {_one_line(error)}") from error


def numbers(line: Line) -> dict[str, float]:
    """The plain numbers of a round's metrics, nested ones as capacity_accuracy/0.25.

    >>> numbers({"round": 3, "clients": [1, 2], "global_loss": None, "capacity_accuracy": {"0.25": 0.5}})
    {'round': 3.0, 'capacity_accuracy/0.25': 0.5}
    """
    flat: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, dict):
            flat |= {f"{key}/{inner}": v for inner, v in numbers(value).items()}
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            flat[key] = float(value)
    return flat


class _Nothing:
    def log(self, line: Line) -> None:
        del line

    def close(self) -> None:
        pass


class _Tracked:
    """Hands a backend every round once, and keeps its failures from ending the training."""

    def __init__(self, name: str, backend: Backend, rounds: int, folder: Path) -> None:
        self.name, self.backend, self.rounds, self.folder = name, backend, rounds, folder
        self.opened = self.failed = False
        self.last = 0

    def log(self, line: Line) -> None:
        if self.failed:
            return
        try:
            missed = [] if self.opened else self._open(line["round"])
            for each in (*missed, line):
                if each["round"] > self.last:
                    self.backend.log(numbers(each), each["round"])
                    self.last = each["round"]
        except Exception as error:  # as above; training goes on, and metrics.jsonl has it all
            self._fail(error)

    def close(self) -> None:
        if self.opened:
            try:
                self.backend.close(self.last == self.rounds)
            except Exception as error:
                self._fail(error)

    def _open(self, round: int) -> list[Line]:
        """Open the backend; the rounds before this one."""
        known = _read_runs(self.folder)
        run, self.last = self.backend.open(known.get(self.name, ""))
        self.opened = True
        write_whole(self.folder / TRACKING, json.dumps(known | {self.name: run}) + "\n")
        return [line for line in read_metrics(self.folder) if line["round"] < round]

    def _fail(self, error: Exception) -> None:
        if self.failed:
            return
        self.failed = True
        print(
            f"warning: {self.name} failed after round {self.last}, and the run goes on without it"
            f" ({self.folder / 'metrics.jsonl'} has every round): {_one_line(error)}",
            file=sys.stderr,
        )


def _read_runs(folder: Path) -> dict[str, str]:
    """Which of each logger's runs this one is; none where the file is missing or not ours."""
    try:
        found = json.loads((folder / TRACKING).read_text())
    except (OSError, ValueError):
        return {}
    return {str(name): str(run) for name, run in found.items()} if isinstance(found, dict) else {}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
