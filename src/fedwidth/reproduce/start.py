"""`reproduce --start`: the first rounds of runs of published tables, to see that their recipes run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import fedwidth
from fedwidth.analysis.wording import plural, show_time
from fedwidth.config.build import find_device
from fedwidth.errors import OptionError
from fedwidth.experiment import Stopped
from fedwidth.files import check_writable
from fedwidth.reproduce.records import hardware
from fedwidth.reproduce.running import name_engine
from fedwidth.reproduce.started import STARTED, StartedRun, read_started, write_started
from fedwidth.reproduce.table_runs import TableRun, list_table_runs
from fedwidth.run.cache import Cache


def start_tables(
    tables: Sequence[str],
    rounds: int,
    *,
    only: Sequence[str] = (),
    changes: Sequence[str] = (),
    results: Path = Path("results"),
    say: Callable[[str], None] = print,
    stop: Callable[[], bool] = lambda: False,
) -> list[StartedRun]:
    """Make so many rounds of the first run of each table, else of those of `only`, and note them in started.json.

    Learning rates follow the schedule of the whole run. Nothing else of these runs is kept.
    """
    runs = _choose(tables, rounds, only=only, changes=changes)
    read_started(results)  # a damaged file is refused before anything runs
    check_writable(results / STARTED)
    found: list[StartedRun] = []
    cache = Cache()
    for run in runs:
        if stop():
            break
        started = _start(run, rounds, cache, say=say, stop=stop)
        if started is None:
            say(f"{run.title}: stopped before round {rounds}; not noted")
            break
        found.append(started)
        write_started(results, started)
    return found


def _choose(tables: Sequence[str], rounds: int, *, only: Sequence[str], changes: Sequence[str]) -> list[TableRun]:
    """The runs to start; changes that would make another experiment are refused, and so are whole runs."""
    runs = []
    for table in dict.fromkeys(tables):
        mine = list_table_runs([table], only=only, seeds=[], changes=changes, work=Path())
        given = {run.label: run.key for run in list_table_runs([table], only=only, seeds=[], changes=[], work=Path())}
        mine = mine if only else mine[:1]
        if any(run.key != given[run.label] for run in mine):
            raise OptionError("--start notes recipes as they are: change only device, engine and the like with --set")
        runs += mine
    for run in runs:
        find_device(run.settings.device)  # one this machine lacks is refused before anything is said
        if rounds >= run.settings.rounds:
            raise OptionError(
                f"--start must be less than the {plural(run.settings.rounds, 'round')} of {run.title}; leave it out to"
                " run and record them all"
            )
    return runs


def _start(
    run: TableRun, rounds: int, cache: Cache, *, say: Callable[[str], None], stop: Callable[[], bool]
) -> StartedRun | None:
    """Make the first rounds of a run; None where it was stopped before."""
    experiment = cache.experiment(run.settings)
    _, explained = name_engine([experiment])
    say(f"{run.title}: {explained}")
    lines: list[dict[str, Any]] = []
    done = count(1)
    with suppress(Stopped):
        experiment.run(on_round=lines.append, stop=lambda: next(done) >= rounds or stop())
    if len(lines) < rounds:
        return None
    last = lines[-1]
    loss = last["train_loss"]
    shown = "unknown" if loss is None else f"{loss:.3f}"
    say(f"{run.title}: {plural(rounds, 'round')} in {show_time(last['seconds'])}, training loss {shown}")
    return StartedRun(
        recipe=run.table,
        label=run.label,
        rounds=rounds,
        train_loss=None if loss is None else round(loss, 4),
        seconds=last["seconds"],
        hardware=hardware(run.settings.device),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        device=run.settings.device,
        version=fedwidth.__version__,
    )
