"""Job lists for published tables: go through the runs of recipes, skip what is recorded, stop when time is up."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedwidth import folder as folders
from fedwidth.config import identity, read_settings, recipe_names
from fedwidth.data import Data
from fedwidth.experiment import Experiment, Stopped
from fedwidth.parts import load_data
from fedwidth.results import (
    UNFINISHED,
    Record,
    append_record,
    count_steps,
    estimate_seconds,
    find_records,
    make_record,
    read_all,
)
from fedwidth.settings import Settings

CHECKPOINTS = 25
"""Checkpoints of a run: little is lost when it is interrupted, and little time is spent on them."""


@dataclass(frozen=True)
class Job:
    """A run of a table with one seed, and the folder it works in."""

    table: str
    label: str
    settings: Settings
    folder: Path

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.table} {self.label}, seed {self.settings.seed}"


@dataclass(frozen=True)
class Outcome:
    """What a sitting came to."""

    done: tuple[Record, ...]
    """Runs finished in it."""
    skipped: int
    """Runs that were recorded already."""
    remaining: tuple[Job, ...]
    seconds_left: float | None
    """What the remaining runs will take; None where nothing is known to estimate it from."""


def reproduce(
    tables: Sequence[str],
    *,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    changes: Sequence[str] = (),
    results: Path = Path("results"),
    work: Path = Path("runs/reproduce"),
    max_minutes: float | None = None,
    say: Callable[[str], None] = print,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run what the results do not hold yet: all runs with the first seed, then all with the second, and so on.

    A run that was interrupted goes on from its last checkpoint. When the minutes are over, the run at hand stops after
    its round and is saved. `tables` are recipes; `changes` are `key=value` texts made to each run.
    """
    ends = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    jobs = list_jobs(tables, only=only, seeds=seeds, changes=changes, work=work)
    records = read_all(results)
    open_jobs = [job for job in jobs if not is_recorded(job, records)]
    say(f"{len(jobs)} runs, {len(jobs) - len(open_jobs)} of them recorded; {_time_left(open_jobs, results)}")
    done: list[Record] = []
    data: dict[str, Data] = {}
    for job in open_jobs:
        if stop() or (ends is not None and time.monotonic() >= ends):
            break
        try:
            record = _run(job, data, changes=changes, say=say, stop=lambda: stop() or _is_over(ends))
        except Stopped as stopped:
            say(f"{job.title}: {stopped}; it goes on from there the next time")
            _note(job, results, changes)
            break
        append_record(results, record)
        done.append(record)
    remaining = tuple(open_jobs[len(done) :])
    seconds = _seconds_left(remaining, results)
    say(f"{len(done)} runs finished, {len(remaining)} remain; {_time_left(remaining, results)}")
    return Outcome(tuple(done), len(jobs) - len(open_jobs), remaining, seconds)


def list_jobs(
    tables: Sequence[str], *, only: Sequence[str], seeds: Sequence[int], changes: Sequence[str], work: Path
) -> list[Job]:
    """Every run of the tables, seed by seed."""
    found: list[tuple[int, Job]] = []
    for source in tables:
        recipe = read_settings(source, changes)
        if only:
            recipe = recipe.only(*only)
        table = source if source in recipe_names() else Path(source).stem
        for run in recipe.runs:
            for place, seed in enumerate(seeds or [run.settings.seed]):
                settings = replace(run.settings, seed=seed)
                if settings.checkpoint_every == 1:
                    settings = replace(settings, checkpoint_every=max(1, settings.rounds // CHECKPOINTS))
                # The fingerprint keeps runs of other settings (--set) apart.
                name = f"seed-{seed}-{identity(_anywhere(settings))[:8]}"
                found.append((place, Job(table, run.label, settings, work / table / run.label / name)))
    return [job for _, job in sorted(found, key=lambda pair: pair[0])]


def is_recorded(job: Job, records: Sequence[Record]) -> bool:
    """Whether this run was made: anywhere, and for any table (papers print some numbers twice)."""
    return any(record.seed == job.settings.seed for record in find_records(records, job.settings))


def _run(
    job: Job, data: dict[str, Data], *, changes: Sequence[str], say: Callable[[str], None], stop: Callable[[], bool]
) -> Record:
    source = job.settings.data
    key = json.dumps([source.name, source.root, source.options], sort_keys=True)
    if key not in data:
        data[key] = load_data(job.settings)
    experiment = Experiment(job.settings, data=data[key])
    result = experiment.run(job.folder, resume=True, on_round=_teller(job, say), stop=stop)
    return _record(job, changes, result.metrics, float(experiment.partition.sizes.double().mean()))


def _note(job: Job, results: Path, changes: Sequence[str]) -> None:
    """Write down how far a stopped run got, if it was evaluated at all."""
    lines = folders.read_metrics(job.folder)
    if any("global_accuracy" in line for line in lines):
        append_record(results / UNFINISHED, _record(job, changes, lines))


def _record(job: Job, changes: Sequence[str], metrics: list[dict[str, Any]], samples: float | None = None) -> Record:
    return make_record(
        job.table,
        job.label,
        _anywhere(job.settings),
        changes=[text for text in changes if not text.startswith("data.root")],
        metrics=metrics,
        steps=(count_steps(job.settings, samples) or 0) * len(metrics) // job.settings.rounds,
    )


def _teller(job: Job, say: Callable[[str], None]) -> Callable[[dict[str, Any]], None]:
    """Says how a run stands after each evaluation, and how long the rest will take at the pace since it went on."""
    began, rounds, before = time.monotonic(), job.settings.rounds, len(folders.read_metrics(job.folder))

    def tell(line: dict[str, Any]) -> None:
        if "global_accuracy" not in line:
            return
        pace = (time.monotonic() - began) / max(1, line["round"] - before)
        accuracy, left = 100 * line["global_accuracy"], show_time(pace * (rounds - line["round"]))
        say(f"{job.title}: round {line['round']} of {rounds}, {accuracy:.2f} %, {left} left")

    return tell


def _anywhere(settings: Settings) -> Settings:
    """The settings without the place of the data on this machine."""
    return replace(settings, data=replace(settings.data, root=""))


def _is_over(ends: float | None) -> bool:
    return ends is not None and time.monotonic() >= ends


def _seconds_left(jobs: Sequence[Job], results: Path) -> float | None:
    """What the jobs will take: those begun at their own pace, the others at that of finished runs like them."""
    records, total = read_all(results), 0.0
    for job in jobs:
        lines = folders.read_metrics(job.folder)
        if lines:
            total += lines[-1]["seconds"] / len(lines) * (job.settings.rounds - len(lines))
            continue
        expected = estimate_seconds(job.settings, records)
        if expected is None:
            return None
        total += expected
    return total


def _time_left(jobs: Sequence[Job], results: Path) -> str:
    if not jobs:
        return "nothing is left to do"
    seconds = _seconds_left(jobs, results)
    return "no run to estimate the time from yet" if seconds is None else f"about {show_time(seconds)} to go"


def show_time(seconds: float) -> str:
    """Seconds for people.

    >>> show_time(40), show_time(150), show_time(9000)
    ('40 s', '3 min', '2.5 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
