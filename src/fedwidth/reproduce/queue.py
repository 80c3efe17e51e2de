"""Working through a queue: the next jobs that are not recorded yet, as many as the time allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedwidth.errors import FedwidthError
from fedwidth.reproduce.jobs import Job
from fedwidth.reproduce.queue_file import Entry
from fedwidth.reproduce.records import Record, key_of, read_all
from fedwidth.reproduce.runs import find_open, run_jobs
from fedwidth.reproduce.words import plural
from fedwidth.run import folder as folders


@dataclass(frozen=True)
class Standing:
    """How far a job of the queue is."""

    entry: Entry
    jobs: tuple[Job, ...]
    records: tuple[Record, ...]
    """Of its runs that are done."""
    rounds: tuple[int, ...]
    """That each of the others has behind it in its folder."""

    @property
    def seconds_left(self) -> float:
        """Expected of the runs that are not done: the entry's seconds, shared out by rounds."""
        rounds = sum(job.settings.rounds for job in self.jobs)
        done = sum(record.rounds for record in self.records) + sum(self.rounds)
        return self.entry.seconds * (1 - done / rounds)

    @property
    def state(self) -> str:
        """For people."""
        if len(self.records) == len(self.jobs):
            return "done"
        begun = f"{max(self.rounds)} rounds of a run are saved" if any(self.rounds) else ""
        done = f"{len(self.records)} of {plural(len(self.jobs), 'run')} done" if self.records else ""
        return ", ".join(filter(None, (done, begun))) or "open"


@dataclass(frozen=True)
class Worked:
    """What a call came to."""

    done: tuple[Record, ...]
    left: tuple[str, ...]
    """Names of the jobs that are not done."""
    failed: tuple[str, ...]
    """Those of them that could not be run."""


def find_standing(entry: Entry, records: Sequence[Record], *, changes: Sequence[str] = (), work: Path) -> Standing:
    """What is recorded of a job, and what lies in its folders."""
    jobs = entry.jobs(changes, work)
    left = find_open(jobs, records)
    last = {(key_of(record.settings), record.seed): record for record in records}
    done = [last[job.key, job.settings.seed] for job in jobs if job not in left]
    return Standing(entry, tuple(jobs), tuple(done), tuple(len(folders.read_metrics(job.folder)) for job in left))


def work_through(
    queue: Sequence[Entry],
    *,
    changes: Sequence[str] = (),
    results: Path = Path("results"),
    work: Path = Path("runs/reproduce"),
    max_minutes: float | None = None,
    packed: bool = False,
    commit: str = "",
    say: Callable[[str], None] = print,
    stop: Callable[[], bool] = lambda: False,
) -> Worked:
    """Run the jobs that are not recorded yet, in order, as `reproduce` runs tables.

    A job that is not expected to end in time is left for the next call, and one behind it that fits is taken; only
    what is longer than a whole call is begun nevertheless, and goes on the next time. A job that cannot be run, for
    want of its data, say, does not keep the others from running.
    """
    whole = None if max_minutes is None else 60 * max_minutes
    ends = None if whole is None else time.monotonic() + whole
    done: list[Record] = []
    left: list[str] = []
    failed: list[str] = []
    for entry in queue:
        try:
            standing = find_standing(entry, read_all(results), changes=changes, work=work)
            if len(standing.records) == len(standing.jobs):
                continue
            left.append(entry.name)
            if stop():
                continue
            needed = standing.seconds_left
            if ends is not None and whole is not None and ends - time.monotonic() < needed <= whole:
                over = max(0.0, ends - time.monotonic())
                say(f"{entry.name}: not begun, {needed:.0f} s are expected and {over:.0f} s are left")
                continue
            if ends is not None and time.monotonic() >= ends:
                continue
            say(f"{entry.name} ({needed:.0f} s expected): {entry.asks}")
            outcome = run_jobs(
                standing.jobs,
                results=results,
                commit=commit,
                ends=ends,
                packed=packed or entry.packed,
                say=say,
                stop=stop,
            )
        except FedwidthError as error:
            if entry.name not in left:
                left.append(entry.name)
            failed.append(entry.name)
            say(f"{entry.name}: cannot be run: {error}")
            continue
        done += outcome.done
        if not outcome.remaining:
            left.remove(entry.name)
    say(f"queue: {plural(len(done), 'run')} finished, {plural(len(left), 'job')} left")
    return Worked(tuple(done), tuple(left), tuple(failed))
