"""Runs of published tables for a few rounds, to see that they run; results/started.json says what they came to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import fedwidth
from fedwidth.config.build import find_device
from fedwidth.errors import OptionError
from fedwidth.experiment import Stopped
from fedwidth.reproduce.forecast import show_time
from fedwidth.reproduce.jobs import Job, list_jobs
from fedwidth.reproduce.records import hardware
from fedwidth.reproduce.runs import settle
from fedwidth.reproduce.started import Start, read_started, write_started
from fedwidth.reproduce.words import plural
from fedwidth.run.cache import Shelf


def start(
    tables: Sequence[str],
    rounds: int,
    *,
    only: Sequence[str] = (),
    changes: Sequence[str] = (),
    results: Path = Path("results"),
    say: Callable[[str], None] = print,
    stop: Callable[[], bool] = lambda: False,
) -> list[Start]:
    """Run the first run of each table, else those of `only`, for so many rounds, and note them in started.json.

    The schedule is that of the whole run, of which nothing else is kept.
    """
    jobs = _choose(tables, rounds, only=only, changes=changes)
    read_started(results)  # a damaged file is refused before anything runs
    found: list[Start] = []
    shelf = Shelf()
    for job in jobs:
        if stop():
            break
        begun = _start(job, rounds, shelf, say=say, stop=stop)
        if begun is None:
            say(f"{job.title}: stopped before round {rounds}; not noted")
            break
        found.append(begun)
        write_started(results, begun)
    return found


def _choose(tables: Sequence[str], rounds: int, *, only: Sequence[str], changes: Sequence[str]) -> list[Job]:
    jobs = []
    for table in dict.fromkeys(tables):
        mine = list_jobs([table], only=only, seeds=[], changes=changes, work=Path())
        given = {job.label: job.key for job in list_jobs([table], only=only, seeds=[], changes=[], work=Path())}
        mine = mine if only else mine[:1]
        if any(job.key != given[job.label] for job in mine):
            raise OptionError("--start notes recipes as they are: change only device, engine and the like with --set")
        jobs += mine
    for job in jobs:
        find_device(job.settings.device)  # one this machine lacks is refused before anything is said
        if rounds >= job.settings.rounds:
            raise OptionError(
                f"--start must be less than the {plural(job.settings.rounds, 'round')} of {job.title}; leave it out to"
                " run and record them all"
            )
    return jobs


def _start(
    job: Job, rounds: int, shelf: Shelf, *, say: Callable[[str], None], stop: Callable[[], bool]
) -> Start | None:
    """The first rounds of a run; None where it was stopped before."""
    experiment = shelf.experiment(job.settings)
    _, explained = settle([experiment])
    say(f"{job.title}: {explained}")
    lines: list[dict[str, Any]] = []
    done = count(1)
    with suppress(Stopped):
        experiment.run(on_round=lines.append, stop=lambda: next(done) >= rounds or stop())
    if len(lines) < rounds:
        return None
    last = lines[-1]
    loss = last["train_loss"]
    say(f"{job.title}: {plural(rounds, 'round')} in {show_time(last['seconds'])}, training loss {_shown(loss)}")
    return Start(
        recipe=job.table,
        label=job.label,
        rounds=rounds,
        train_loss=None if loss is None else round(loss, 4),
        seconds=last["seconds"],
        hardware=hardware(job.settings.device),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        device=job.settings.device,
        version=fedwidth.__version__,
    )


def _shown(loss: float | None) -> str:
    return "unknown" if loss is None else f"{loss:.3f}"
