"""Job lists for published tables: go through the runs of recipes, skip what is recorded, stop when time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedwidth.config.build import find_device
from fedwidth.engines import choose_engine
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment, Stopped
from fedwidth.reproduce.durations import count_steps
from fedwidth.reproduce.forecast import count_seconds_left, make_teller, show_time_left
from fedwidth.reproduce.jobs import Job, anywhere, list_jobs, title_of
from fedwidth.reproduce.records import UNFINISHED, Record, append_record, key_of, make_record, read_all
from fedwidth.reproduce.words import plural
from fedwidth.run import folder as folders
from fedwidth.run.cache import Shelf
from fedwidth.run.lockstep import check_for_packing, explain_engine, group_for_packing, run_together, settle_engine
from fedwidth.run.provenance import note_fallback


@dataclass(frozen=True)
class Outcome:
    """What a call came to."""

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
    commit: str = "",
    say: Callable[[str], None] = print,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run what the results do not hold yet: all runs with the first seed, then all with the second, and so on.

    A run that was interrupted goes on from its last checkpoint. When the minutes are over, the run at hand stops after
    its round and is saved. `tables` are recipes; `changes` are `key=value` texts made to each run. With `packed`, runs
    of one shape train as one batch, all seeds together. `commit` is that of the source, for the records.
    """
    ends = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    jobs = list_jobs(tables, only=only, seeds=seeds, changes=changes, work=work)
    return run_jobs(jobs, results=results, commit=commit, ends=ends, packed=packed, say=say, stop=stop)


def run_jobs(
    jobs: Sequence[Job],
    *,
    results: Path,
    commit: str = "",
    ends: float | None = None,
    packed: bool = False,
    say: Callable[[str], None] = print,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run those of the jobs that the results do not hold yet, until a time on the monotonic clock (`ends`)."""
    for job in jobs:
        if job.settings.answers and not job.settings.evaluation.test:
            raise OptionError(f"{job.title}: evaluation.test is false, but published accuracies are of the test set")
        if packed:
            check_for_packing(job.settings)
    open_jobs = find_open(jobs, read_all(results))
    for device in {job.settings.device for job in open_jobs}:
        find_device(device)  # one this machine lacks is refused before anything is said
    say(f"{plural(len(jobs), 'run')}, {len(jobs) - len(open_jobs)} recorded; {show_time_left(open_jobs, results)}")
    settings = [job.settings for job in open_jobs]
    packs = group_for_packing(settings) if packed else [[number] for number in range(len(open_jobs))]
    done: dict[Path, Record] = {}
    shelf = Shelf()
    for numbers in packs:
        if stop() or _is_over(ends):
            break
        here = [open_jobs[number] for number in numbers]
        experiments = [shelf.experiment(job.settings) for job in here]
        engine, explained = settle(experiments, packed=packed)
        say(f"{title_of(here)}: {explained}")
        fallen: list[str] = []
        make = partial(_record, engine=engine, fallen=fallen, commit=commit)
        try:
            with note_fallback(fallen):
                records = _run(here, experiments, make, packed=packed, say=say, stop=lambda: stop() or _is_over(ends))
        except Stopped as stopped:
            say(f"{title_of(here)}: {stopped}; it goes on from there the next time")
            for job in here:
                _note(job, results, make)
            break
        except folders.InUse:
            raise OptionError(
                f"{title_of(here)}: another process is at it in {here[0].folder}; wait for it or give another --work"
            ) from None
        for job, record in zip(here, records, strict=True):
            append_record(results, record)
            done[job.folder] = record
        del experiments  # before the next ones are made: their models take memory on the device
    remaining = tuple(job for job in open_jobs if job.folder not in done)
    seconds = count_seconds_left(remaining, results)
    say(f"{plural(len(done), 'run')} finished, {len(remaining)} remaining; {show_time_left(remaining, results)}")
    return Outcome(tuple(done.values()), len(jobs) - len(open_jobs), remaining, seconds)


def find_open(jobs: Sequence[Job], records: Sequence[Record]) -> list[Job]:
    """The jobs that none of the records is a run of."""
    recorded = {(key_of(record.settings), record.seed) for record in records}
    return [job for job in jobs if (job.key, job.settings.seed) not in recorded]


def settle(experiments: Sequence[Experiment], *, packed: bool = False) -> tuple[str, str]:
    """The engine that will train one run, or several as one batch: its name, and a text with the reason."""
    if packed:
        settle_engine(experiments)
        return experiments[0].settings.engine, f"engine: {explain_engine(experiments[0])}"
    choice = choose_engine(experiments[0].trainer)
    return choice.name, str(choice)


def _run(
    jobs: Sequence[Job],
    experiments: Sequence[Experiment],
    make: Callable[..., Record],
    *,
    packed: bool,
    say: Callable[[str], None],
    stop: Callable[[], bool],
) -> list[Record]:
    """Run one job, or several as one batch."""
    tell = make_teller(jobs, say)
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
        records.append(make(job, result.metrics, samples, packed=len(jobs), same_as=same_as))
    return records


def _note(job: Job, results: Path, make: Callable[..., Record]) -> None:
    """Write down how far a stopped run got, if it was evaluated at all."""
    lines = folders.read_metrics(job.folder)
    if any("global_loss" in line or "validation_loss" in line for line in lines):
        append_record(results / UNFINISHED, make(job, lines))


def _record(
    job: Job,
    metrics: list[dict[str, Any]],
    samples: float | None = None,
    *,
    engine: str,
    fallen: Sequence[str],
    commit: str,
    packed: int = 1,
    same_as: str = "",
) -> Record:
    return make_record(
        job.table,
        job.label,
        anywhere(job.settings),
        changes=job.changes,
        metrics=metrics,
        steps=(count_steps(job.settings, samples) or 0) * len(metrics) // job.settings.rounds,
        engine="serial" if fallen else engine,  # what engines fall back to
        fell_back=fallen[0] if fallen else "",
        commit=commit,
        packed=packed,
        same_as=same_as,
        folder=job.folder,
    )


def _is_over(ends: float | None) -> bool:
    return ends is not None and time.monotonic() >= ends
