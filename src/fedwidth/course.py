"""A run under way, and what it leaves behind: metrics round by round, checkpoints, and the summary at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedwidth import checkpoint, evaluation, folder
from fedwidth.methods import Task
from fedwidth.rounds import Report
from fedwidth.server import Server
from fedwidth.summary import finite, summarise

if TYPE_CHECKING:
    from fedwidth.experiment import Experiment

Line = dict[str, Any]


class Stopped(Exception):
    """The run was asked to stop; it finished its round and saved it."""


@dataclass(frozen=True)
class Result:
    """A finished run."""

    summary: dict[str, Any]
    metrics: list[Line]
    server: Server
    model: nn.Module
    """The global model with the final state, ready to use."""


@dataclass(frozen=True)
class Measured:
    """An evaluation: its part of the metrics, and the accuracy of every client."""

    line: Line
    local: evaluation.LocalScores | None


class Course:
    """A run under way: its server, and what it writes down.

    Of `packed` runs that train as one batch each has its share of the time, and writes its lines with its checkpoints.
    """

    def __init__(
        self, experiment: Experiment, place: Path | None, server: Server, *, seconds: float, packed: int
    ) -> None:
        self.experiment, self.place, self.server = experiment, place, server
        self.packed = packed
        self._metrics = folder.Metrics(place, rounds=server.round) if place else None
        self.lines: list[Line] = list(self._metrics.lines) if self._metrics else []
        self._written = len(self.lines)
        self._before, self._began = seconds, time.perf_counter()
        self._measured: Measured | None = None

    @property
    def ended(self) -> bool:
        """Whether all rounds are done."""
        return self.server.round >= self.experiment.settings.rounds

    @property
    def seconds(self) -> float:
        """What the run has taken."""
        return self._before + (time.perf_counter() - self._began) / self.packed

    def note(
        self,
        server: Server,
        tasks: Sequence[Task],
        report: Report,
        measured: Measured | None,
        *,
        cohort: Sequence[tuple[int, float]] = (),
    ) -> None:
        """A round has ended, and left this server behind; `cohort` is who was to train in it."""
        self.server, self._measured = server, measured
        line = self.experiment.line(server, tasks, report, cohort) | (measured.line if measured else {})
        self.lines.append({key: finite(value) for key, value in line.items()})
        self.lines[-1]["seconds"] = round(self.seconds, 3)
        if self.packed == 1:
            self._write()

    def save(self, *, always: bool) -> None:
        """Write the checkpoint, if it is time to."""
        due = self.ended or self.server.round % self.experiment.settings.checkpoint_every == 0
        if self.place and (always or due):
            self._write()
            self.experiment.save(self.place, self.server, self.seconds)

    def finish(self) -> Result:
        """Write the summary, after the last round."""
        experiment, server = self.experiment, self.server
        summary = summarise(experiment.settings, self.lines)
        if self.place:
            clients = experiment.clients(server, self._measured)
            if clients:
                checkpoint.write_whole(self.place / "clients.json", json.dumps(clients) + "\n")
            checkpoint.write_whole(self.place / "summary.json", json.dumps(summary, indent=2) + "\n")
        settings, data = experiment.settings.evaluation, experiment.data
        evaluation.prepare(experiment.model, server.state, data, settings, experiment.device)
        model = experiment.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return Result(summary, self.lines, server, model)

    def _write(self) -> None:
        if self._metrics and self._written < len(self.lines):
            self._metrics.append(*self.lines[self._written :])
            self._written = len(self.lines)
