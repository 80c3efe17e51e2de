"""A run under way, and what it leaves behind: metrics round by round, checkpoints, and the summary at the end."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from fedwidth.errors import OptionError
from fedwidth.evaluation.evaluator import Measured
from fedwidth.evaluation.representative import LastRound
from fedwidth.methods import Task
from fedwidth.run import checkpoint
from fedwidth.run.alarm import fall_of
from fedwidth.run.budget import write_ledger
from fedwidth.run.clients import rows_of
from fedwidth.run.folder import MODELS
from fedwidth.run.metrics import Line, describe_round
from fedwidth.run.saving import Saver
from fedwidth.run.summary import describe_score, finite, summarise
from fedwidth.run.weights.ready_models import add_plan, readable_models, write_models
from fedwidth.training.engine import Report
from fedwidth.training.server.state import Server

if TYPE_CHECKING:
    from fedwidth.experiment import Experiment

PACK_WRITES_AFTER = 1.0
"""Seconds between the writes of a packed run: one line at a time, hundreds of files would be opened each round."""


class Stopped(Exception):
    """Raised by a run that was asked to stop, after it has finished its round and saved it."""


@dataclass(frozen=True)
class Result:
    """What a finished run leaves: its summary, its metrics, the server and the model."""

    summary: dict[str, Any]
    metrics: list[Line]
    server: Server
    model: nn.Module
    """The global model with the final state, ready to use."""

    def __repr__(self) -> str:
        """In one line: what it scores; its tensors are not for reading."""
        said = describe_score(self.metrics[-1])
        return f"Result({len(self.metrics)} rounds{', ' * bool(said)}{said})"


class Recorder:
    """A run under way: its server, and what it writes down.

    Of `packed` runs that train as one batch each has its share of the time, and writes its lines several at a time.
    As a context it sees to it that nothing is written after its end, and that a run that fails keeps what it had done.
    """

    def __init__(
        self, experiment: Experiment, folder: Path | None, server: Server, *, seconds: float, packed: int
    ) -> None:
        self.experiment, self.folder, self.server = experiment, folder, server
        self.packed = packed
        self._saver = Saver(folder, experiment.settings, rounds=server.round) if folder else None
        self.lines: list[Line] = list(self._saver.lines) if self._saver else []
        self._before, self._began = seconds, time.perf_counter()
        self._wrote = self._began
        self._measured: Measured | None = None
        self.last_round = experiment.last_round(server)
        """After how many rounds the run ends."""
        self._last: LastRound | None = None

    @property
    def ended(self) -> bool:
        """Whether all rounds are done, or all that a private run has a budget for."""
        return self.server.round >= self.last_round

    def open(self, clients: Iterable[int]) -> Server:
        """The server as a round begins for which these clients were drawn; a private run first writes down that."""
        if self.experiment.budget is not None:
            self.server = replace(self.server, spent=self.server.spent.after(clients))
            if self.folder:
                write_ledger(self.folder, self.server.spent)
        return self.server

    @property
    def seconds(self) -> float:
        """How long the run has taken so far, earlier parts of a resumed one included."""
        return self._before + (time.perf_counter() - self._began) / self.packed

    def record(
        self,
        server: Server,
        tasks: Sequence[Task],
        report: Report,
        measured: Measured | None,
        *,
        cohort: Sequence[tuple[int, float]] = (),
    ) -> None:
        """Write down a round that has ended and left this server behind; `cohort` is who was to train in it."""
        line = describe_round(self.experiment, server, tasks, report, cohort) | (measured.line if measured else {})
        points = self.experiment.settings.evaluation.alarm
        if measured and (fall := fall_of(self.lines, measured.line, points)) is not None:
            line["alarm"] = fall
        self.lines.append({key: finite(value) for key, value in line.items()})
        self.lines[-1]["seconds"] = round(self.seconds, 3)
        may_end = self.experiment.evaluator.is_last(server.round) or self.experiment.budget is not None
        if self.folder and may_end:
            self._last = self.experiment.evaluator.last_round(server, before=self.server, cohort=cohort)
        self.server, self._measured = server, measured  # now that there is a line of its last round
        if self.packed == 1 or time.perf_counter() - self._wrote >= PACK_WRITES_AFTER:
            self._write()

    def save(self, *, always: bool) -> None:
        """Save the round, if it is time to; raises what an earlier save, made beside the training, failed with."""
        if self._saver is None:
            return
        always = always or self.ended
        self._saver.check(wait=always)
        if always or self._saver.is_due(self.server.round):
            self._write()
            copy = checkpoint.copy_server(
                self.server, identity=self.experiment.identity, extra={"seconds": self.seconds}
            )
            self._saver.save(copy, wait=always)

    def __enter__(self) -> Self:
        """The recorder itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what is being written; of a run that failed (and was not killed) save the last round that was whole."""
        saver = self._saver
        if saver is None:
            return
        if isinstance(error, Exception) and saver.sound and self.server.round > saver.saved:
            _do_at_the_end(lambda: self.save(always=True), error)
        _do_at_the_end(lambda: saver.check(wait=True), error)

    def finish(self) -> Result:
        """Write the summary, after the last round."""
        experiment, server = self.experiment, self.server
        if not self.lines:
            raise OptionError(
                "the privacy budget was spent before a round could be saved: give a larger privacy.epsilon"
            )
        summary = summarise(experiment.settings, self.lines)
        if experiment.unfit:
            summary["left_out"] = {str(float(capacity)): why for capacity, why in experiment.unfit.items()}
        if experiment.budget is not None:
            summary |= {"rounds": server.round, "privacy": experiment.budget.facts(server, last=self.last_round)}
        kept = False
        if self.folder:
            if clients := rows_of(experiment, server, self._measured):
                checkpoint.write_whole(self.folder / "clients.json", json.dumps(clients) + "\n")
            kept = self._keep_models(self.folder)
            checkpoint.write_whole(self.folder / "summary.json", json.dumps(summary, indent=2) + "\n")
        settings, model = experiment.settings, experiment.model
        if not kept or settings.evaluation.norm != "static" or settings.precision == "bf16":
            model = experiment.evaluator.prepare(model, server.state, precise=True)
        model = model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return Result(summary, self.lines, server, model)

    def _keep_models(self, folder: Path) -> bool:
        """Write what it takes to use the run's models, and leave the global one prepared; whether it was written.

        A run that had ended already keeps what it wrote then, where that can be read, and adds the plan if it lacks it.
        """
        experiment, server = self.experiment, self.server
        if self._last is None and (ready := readable_models(folder, round=server.round)) is not None:
            if ready.plan is None and not add_plan(folder, ready, experiment.plan):
                warnings.warn(
                    f"{folder / MODELS} has models that an earlier version sliced otherwise, and stays as it is: that"
                    " version of fedwidth can load them",
                    stacklevel=3,
                )
            return False
        write_models(folder, experiment, server, self._last or experiment.evaluator.last_round(server))
        return True

    def _write(self) -> None:
        if self._saver:
            self._saver.append(self.lines)
            self._wrote = time.perf_counter()


def _do_at_the_end(step: Callable[[], None], error: BaseException | None) -> None:
    """Do a last step; where the run ends with an error already, what the step fails with is a warning."""
    try:
        step()
    except Exception as failure:
        if error is None:
            raise
        warnings.warn(f"the last rounds are not saved: {failure}", stacklevel=4)
