"""Working through a queue: the next jobs that are not recorded yet, as many as the time allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedwidth.analysis.wording import plural
from fedwidth.errors import FedwidthError
from fedwidth.reproduce.queue_file import Job
from fedwidth.reproduce.records import Record, read_all
from fedwidth.reproduce.running import Clock, find_missing, run_all
from fedwidth.reproduce.table_runs import Packed, TableRun
from fedwidth.run import folder as folders


@dataclass(frozen=True)
class JobProgress:
    """How far a job of the queue is."""

    job: Job
    runs: tuple[TableRun, ...]
    records: tuple[Record, ...]
    """The records of those of its runs that are done."""
    rounds: tuple[int, ...]
    """For each of the other runs, how many rounds are saved in its folder."""

    @property
    def is_done(self) -> bool:
        """Whether every run of the job is recorded."""
        return len(self.records) == len(self.runs)

    @property
    def seconds_left(self) -> float:
        """How long the rest is expected to take: the seconds of the job, shared out by rounds."""
        rounds = sum(run.settings.rounds for run in self.runs)
        done = sum(record.rounds for record in self.records) + sum(self.rounds)
        return self.job.seconds * (1 - done / rounds)

    @property
    def state(self) -> str:
        """How far the job is, in words: done, open, or what there is of it."""
        if self.is_done:
            return "done"
        begun = f"{max(self.rounds)} rounds of a run are saved" if any(self.rounds) else ""
        done = f"{len(self.records)} of {plural(len(self.runs), 'run')} done" if self.records else ""
        return ", ".join(filter(None, (done, begun))) or "open"


@dataclass(frozen=True)
class QueueOutcome:
    """What a call of `work_through` came to."""

    done: tuple[Record, ...]
    left: tuple[str, ...]
    """The names of the jobs that are not done."""
    failed: tuple[str, ...]
    """The names of those of them that could not be run."""


def find_progress(job: Job, records: Sequence[Record], *, changes: Sequence[str] = (), work: Path) -> JobProgress:
    """How far a job is, from the records and from what lies in the folders of its runs."""
    runs = job.runs(changes, work)
    missing = find_missing(runs, records)
    last = {(record.key, record.seed): record for record in records}
    done = [last[run.key, run.settings.seed] for run in runs if run not in missing]
    saved = [len(folders.read_metrics(run.folder)) for run in missing]
    return JobProgress(job, tuple(runs), tuple(done), tuple(saved))


def work_through(
    queue: Sequence[Job],
    *,
    changes: Sequence[str] = (),
    results: Path = Path("results"),
    work: Path = Path("runs/reproduce"),
    max_minutes: float | None = None,
    packed: Packed = False,
    commit: str = "",
    say: Callable[[str], None] = print,
    stop: Callable[[], bool] = lambda: False,
    clock: Clock = time.monotonic,
) -> QueueOutcome:
    """Run the jobs that are not recorded yet, in order, as `reproduce` runs tables.

    A job that is not expected to end in time is left for the next call, and one behind it that fits is taken; only
    what is longer than a whole call is begun nevertheless, and goes on the next time. A job that cannot be run, for
    want of its data, say, does not keep the others from running.
    """
    whole = None if max_minutes is None else 60 * max_minutes
    ends = None if whole is None else clock() + whole
    done: list[Record] = []
    left: list[str] = []
    failed: list[str] = []
    for job in queue:
        try:
            progress = find_progress(job, read_all(results), changes=changes, work=work)
            if progress.is_done:
                continue
            left.append(job.name)
            if stop():
                continue
            needed = progress.seconds_left
            if ends is not None and whole is not None and ends - clock() < needed <= whole:
                over = max(0.0, ends - clock())
                say(f"{job.name}: not begun, {needed:.0f} s are expected and {over:.0f} s are left")
                continue
            if ends is not None and clock() >= ends:
                continue
            say(f"{job.name} ({needed:.0f} s expected): {job.asks}")
            outcome = run_all(
                progress.runs,
                results=results,
                commit=commit,
                ends=ends,
                packed=packed or job.packed,
                say=say,
                stop=stop,
                clock=clock,
            )
        except FedwidthError as error:
            if job.name not in left:
                left.append(job.name)
            failed.append(job.name)
            say(f"{job.name}: cannot be run: {error}")
            continue
        done += outcome.done
        if not outcome.remaining:
            left.remove(job.name)
    say(f"queue: {plural(len(done), 'run')} finished, {plural(len(left), 'job')} left")
    return QueueOutcome(tuple(done), tuple(left), tuple(failed))
