"""Job lists for published tables: go through the runs of recipes, skip what is recorded, stop when time is up."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedwidth import folder as folders
from fedwidth.config import identity, read_settings, recipe_names
from fedwidth.experiment import Stopped
from fedwidth.results import (
    UNFINISHED,
    Record,
    append_record,
    count_steps,
    estimate_seconds,
    experiment_of,
    make_record,
    read_all,
)
from fedwidth.settings import Settings
from fedwidth.shelf import Shelf
from fedwidth.together import for_packing, group_for_packing, run_together

CHECKPOINTS, PACKED_CHECKPOINTS = 25, 4
"""Checkpoints of a run: little is lost when it is interrupted, and little time is spent on them. A pack is done soon,
and a checkpoint of it is one of each of its runs."""

PAUSE = 10.0
"""Seconds between two lines about runs that train as one batch."""


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
    packed: bool = False,
    say: Callable[[str], None] = print,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run what the results do not hold yet: all runs with the first seed, then all with the second, and so on.

    A run that was interrupted goes on from its last checkpoint. When the minutes are over, the run at hand stops after
    its round and is saved. `tables` are recipes; `changes` are `key=value` texts made to each run. With `packed`, runs
    of one shape train as one batch, all seeds together.
    """
    ends = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    checkpoints = PACKED_CHECKPOINTS if packed else CHECKPOINTS
    jobs = list_jobs(tables, only=only, seeds=seeds, changes=changes, work=work, checkpoints=checkpoints)
    if packed:
        jobs = [replace(job, settings=for_packing(job.settings)) for job in jobs]
    recorded = {(_experiment(record.settings), record.seed) for record in read_all(results)}
    open_jobs = [job for job in jobs if (_experiment(asdict(job.settings)), job.settings.seed) not in recorded]
    say(f"{len(jobs)} runs, {len(jobs) - len(open_jobs)} of them recorded; {_time_left(open_jobs, results)}")
    settings = [job.settings for job in open_jobs]
    packs = group_for_packing(settings) if packed else [[number] for number in range(len(open_jobs))]
    done: dict[Path, Record] = {}
    shelf = Shelf()
    for numbers in packs:
        if stop() or _is_over(ends):
            break
        here = [open_jobs[number] for number in numbers]
        try:
            records = _run(here, shelf, changes=changes, packed=packed, say=say, stop=lambda: stop() or _is_over(ends))
        except Stopped as stopped:
            say(f"{_title(here)}: {stopped}; it goes on from there the next time")
            for job in here:
                _note(job, results, changes)
            break
        for job, record in zip(here, records, strict=True):
            append_record(results, record)
            done[job.folder] = record
    remaining = tuple(job for job in open_jobs if job.folder not in done)
    seconds = _seconds_left(remaining, results)
    say(f"{len(done)} runs finished, {len(remaining)} remain; {_time_left(remaining, results)}")
    return Outcome(tuple(done.values()), len(jobs) - len(open_jobs), remaining, seconds)


def list_jobs(
    tables: Sequence[str],
    *,
    only: Sequence[str],
    seeds: Sequence[int],
    changes: Sequence[str],
    work: Path,
    checkpoints: int = CHECKPOINTS,
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
                    settings = replace(settings, checkpoint_every=max(1, settings.rounds // checkpoints))
                # The fingerprint keeps runs of other settings (--set) apart.
                name = f"seed-{seed}-{identity(_anywhere(settings))[:8]}"
                found.append((place, Job(table, run.label, settings, work / table / run.label / name)))
    return [job for _, job in sorted(found, key=lambda pair: pair[0])]


def _experiment(settings: Mapping[str, Any]) -> str:
    """What makes a run the one a table asks for: wherever it was made, and for whichever table (some ask twice)."""
    return json.dumps(experiment_of(settings), sort_keys=True)


def _run(
    jobs: Sequence[Job],
    shelf: Shelf,
    *,
    changes: Sequence[str],
    packed: bool,
    say: Callable[[str], None],
    stop: Callable[[], bool],
) -> list[Record]:
    """Run one job, or several as one batch."""
    experiments = [shelf.experiment(job.settings) for job in jobs]
    tell = _teller(jobs, say)
    if packed:
        places = [job.folder for job in jobs]
        results = run_together(experiments, places, resume=True, on_round=tell, stop=stop)
    else:
        results = [experiments[0].run(jobs[0].folder, resume=True, on_round=lambda line: tell(0, line), stop=stop)]
    firsts: dict[int, str] = {}
    records = []
    for job, experiment, result in zip(jobs, experiments, results, strict=True):
        # Runs that did the same work in every round end with one state.
        first = firsts.setdefault(id(result.server.state), job.title)
        same_as = "" if first == job.title else first
        samples = float(experiment.partition.sizes.double().mean())
        records.append(_record(job, changes, result.metrics, samples, packed=len(jobs), same_as=same_as))
    return records


def _title(jobs: Sequence[Job]) -> str:
    tables = ", ".join(dict.fromkeys(job.table for job in jobs))
    return jobs[0].title if len(jobs) == 1 else f"{tables}, {len(jobs)} runs as one batch"


def _note(job: Job, results: Path, changes: Sequence[str]) -> None:
    """Write down how far a stopped run got, if it was evaluated at all."""
    lines = folders.read_metrics(job.folder)
    if any("global_accuracy" in line for line in lines):
        append_record(results / UNFINISHED, _record(job, changes, lines))


def _record(
    job: Job,
    changes: Sequence[str],
    metrics: list[dict[str, Any]],
    samples: float | None = None,
    *,
    packed: int = 1,
    same_as: str = "",
) -> Record:
    return make_record(
        job.table,
        job.label,
        _anywhere(job.settings),
        changes=[text for text in changes if not text.startswith("data.root")],
        metrics=metrics,
        steps=(count_steps(job.settings, samples) or 0) * len(metrics) // job.settings.rounds,
        packed=packed,
        same_as=same_as,
    )


def _teller(jobs: Sequence[Job], say: Callable[[str], None]) -> Callable[[int, dict[str, Any]], None]:
    """Says how runs stand after an evaluation, and how long the rest will take at the pace since they went on."""
    began, rounds = time.monotonic(), max(job.settings.rounds for job in jobs)
    before = min(len(folders.read_metrics(job.folder)) for job in jobs)
    accuracies: dict[int, float] = {}
    told = began

    def tell(number: int, line: dict[str, Any]) -> None:
        nonlocal told
        if "global_accuracy" not in line:
            return
        accuracies[number] = 100 * line["global_accuracy"]
        # Of many runs the last one speaks for all, every few seconds.
        now = time.monotonic()
        if len(jobs) > 1 and (number < len(jobs) - 1 or (now - told < PAUSE and line["round"] < rounds)):
            return
        told = now
        pace = (now - began) / max(1, line["round"] - before)
        left = show_time(pace * (rounds - line["round"]))
        mean = sum(accuracies.values()) / len(accuracies)
        shown = f"{mean:.2f} %" if len(jobs) == 1 else f"{mean:.2f} % on average"
        say(f"{_title(jobs)}: round {line['round']} of {rounds}, {shown}, {left} left")

    return tell


def _anywhere(settings: Settings) -> Settings:
    """The settings without the place of the data on this machine."""
    return replace(settings, data=replace(settings.data, root=""))


def _is_over(ends: float | None) -> bool:
    return ends is not None and time.monotonic() >= ends


def _seconds_left(jobs: Sequence[Job], results: Path) -> float | None:
    """What the jobs will take: those begun at their own pace, the others at that of finished runs like them."""
    records, total = read_all(results), 0.0
    known: dict[str, float | None] = {}
    for job in jobs:
        lines = folders.read_metrics(job.folder)
        if lines:
            total += lines[-1]["seconds"] / len(lines) * (job.settings.rounds - len(lines))
            continue
        alike = _experiment(asdict(job.settings))
        if alike not in known:
            known[alike] = estimate_seconds(job.settings, records)
        expected = known[alike]
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
