"""`reproduce`: runs what is not recorded yet of published tables, and records it, until the time is up."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedwidth.analysis.wording import plural
from fedwidth.config.build import find_device
from fedwidth.engines import choose_engine
from fedwidth.engines.packed.kept_pools import KeptPools
from fedwidth.engines.packed.limits import why_not_pack
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment, Stopped
from fedwidth.reproduce.estimate import count_steps
from fedwidth.reproduce.progress import count_seconds_left, make_reporter, show_time_left
from fedwidth.reproduce.records import UNFINISHED, Record, append_record, check_can_record, make_record, read_all
from fedwidth.reproduce.table_runs import SEEDS, Packed, TableRun, list_table_runs, title_of, without_root
from fedwidth.run import folder as folders
from fedwidth.run.cache import Cache
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.run.lockstep.packing import check_for_packing, explain_packed_engine, group_for_packing, use_packed_engine
from fedwidth.run.provenance import note_fallback

Clock = Callable[[], float]
"""Seconds from any beginning, as `time.monotonic` counts them."""


@dataclass(frozen=True)
class Outcome:
    """What a call of `reproduce` came to."""

    done: tuple[Record, ...]
    """The runs that were finished in this call."""
    skipped: int
    """How many runs had been recorded before."""
    remaining: tuple[TableRun, ...]
    seconds_left: float | None
    """How long the remaining runs will take; None where no finished run is like them."""


def reproduce(
    tables: Sequence[str],
    *,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    changes: Sequence[str] = (),
    results: Path = Path("results"),
    work: Path = Path("runs/reproduce"),
    max_minutes: float | None = None,
    packed: Packed = False,
    commit: str = "",
    say: Callable[[str], None] = print,
    stop: Callable[[], bool] = lambda: False,
    clock: Clock = time.monotonic,
) -> Outcome:
    """Run what the results do not hold yet: all runs with the first seed, then all with the second, and so on.

    A run that was interrupted goes on from its last checkpoint. When the minutes are over, the run that is training
    stops after its round and is saved. `tables` are recipes; `changes` are `key=value` texts, made to each run. With
    `packed`, runs of one shape train as one batch, all seeds together, or ("seeds") the seeds of one row. `commit` is
    that of the source, for the records.
    """
    ends = None if max_minutes is None else clock() + 60 * max_minutes
    runs = list_table_runs(tables, only=only, seeds=seeds, changes=changes, work=work)
    return run_all(runs, results=results, commit=commit, ends=ends, packed=packed, say=say, stop=stop, clock=clock)


def run_all(
    runs: Sequence[TableRun],
    *,
    results: Path,
    commit: str = "",
    ends: float | None = None,
    packed: Packed = False,
    say: Callable[[str], None] = print,
    stop: Callable[[], bool] = lambda: False,
    clock: Clock = time.monotonic,
) -> Outcome:
    """Run and record those that the results do not hold yet, until the clock shows `ends`."""
    for run in runs:
        if run.settings.answers and not run.settings.evaluation.test:
            raise OptionError(f"{run.title}: evaluation.test is false, but published accuracies are of the test set")
        if packed is True:
            check_for_packing(run.settings)
    missing = find_missing(runs, read_all(results))
    for device in {run.settings.device for run in missing}:
        find_device(device)  # one this machine lacks is refused before anything is said
    if missing:  # what others recorded can be asked for where nothing can be written
        check_can_record(results, sorted({run.table for run in missing}))
    say(f"{plural(len(runs), 'run')}, {len(runs) - len(missing)} recorded; {show_time_left(missing, results)}")
    done: dict[Path, Record] = {}
    cache = Cache()

    def should_stop() -> bool:
        return stop() or (ends is not None and clock() >= ends)

    settings = [run.settings for run in missing]
    alone = [[number] for number in range(len(missing))]
    waiting = deque(group_for_packing(settings, seeds_only=packed == SEEDS) if packed else alone)
    with closing(KeptPools()) as pools:
        while waiting and not should_stop():
            numbers = waiting.popleft()
            batch = [missing[number] for number in numbers]
            experiments = [cache.experiment(run.settings) for run in batch]
            together = packed is True or len(batch) > 1
            if together:
                pools.keep_for(experiments[0].trainer)
            else:
                pools.close()
            if packed == SEEDS and together and (reason := _why_alone(experiments)) is not None:
                say(f"{title_of(batch)}: one by one instead, as {reason}")
                waiting.extendleft([number] for number in reversed(numbers))
                del experiments
                continue
            engine, explained = name_engine(experiments, packed=together)
            say(f"{title_of(batch)}: {explained}")
            fallen: list[str] = []
            make = partial(_record, engine=engine, fallen=fallen, commit=commit)
            try:
                with note_fallback(fallen):
                    records = _train(batch, experiments, make, pools, packed=together, say=say, stop=should_stop)
            except Stopped as stopped:
                say(f"{title_of(batch)}: {stopped}; it goes on from there the next time")
                for run in batch:
                    _record_unfinished(run, results, make)
                break
            except folders.InUse:
                raise OptionError(
                    f"{title_of(batch)}: another process is at it in {batch[0].folder}; "
                    "wait for it or give another --work"
                ) from None
            for run, record in zip(batch, records, strict=True):
                append_record(results, record)
                done[run.folder] = record
            # Before the next ones are made: models take memory on the device. One for each pool that is kept stays.
            del experiments
    remaining = tuple(run for run in missing if run.folder not in done)
    seconds = count_seconds_left(remaining, results)
    say(f"{plural(len(done), 'run')} finished, {len(remaining)} remaining; {show_time_left(remaining, results)}")
    return Outcome(tuple(done.values()), len(runs) - len(missing), remaining, seconds)


def _why_alone(experiments: Sequence[Experiment]) -> str | None:
    """The reason why the seeds of a row cannot train as one batch, or None."""
    try:
        check_for_packing(experiments[0].settings)
    except OptionError as error:
        return str(error)
    return why_not_pack([experiment.trainer for experiment in experiments])


def find_missing(runs: Sequence[TableRun], records: Sequence[Record]) -> list[TableRun]:
    """The runs that no record answers to: none is of the same experiment with the same seed."""
    recorded = {(record.key, record.seed) for record in records}
    return [run for run in runs if (run.key, run.settings.seed) not in recorded]


def name_engine(experiments: Sequence[Experiment], *, packed: bool = False) -> tuple[str, str]:
    """The engine that will train one run, or several as one batch: its name, and a text with the reason."""
    if packed:
        use_packed_engine(experiments)
        return experiments[0].settings.engine, f"engine: {explain_packed_engine(experiments[0])}"
    choice = choose_engine(experiments[0].trainer)
    return choice.name, str(choice)


def _train(
    runs: Sequence[TableRun],
    experiments: Sequence[Experiment],
    make: Callable[..., Record],
    pools: KeptPools,
    *,
    packed: bool,
    say: Callable[[str], None],
    stop: Callable[[], bool],
) -> list[Record]:
    """Train one run, or several as one batch (in slots that the one before has left), and make their records."""
    report = make_reporter(runs, say)
    if packed:
        places = [run.folder for run in runs]
        results = run_in_lockstep(experiments, places, resume=True, on_round=report, stop=stop, pools=pools)
    else:
        results = [experiments[0].run(runs[0].folder, resume=True, on_round=lambda line: report(0, line), stop=stop)]
    firsts: dict[int, str] = {}
    records = []
    for run, experiment, result in zip(runs, experiments, results, strict=True):
        # Runs that did the same work in every round end with one state.
        first = firsts.setdefault(id(result.server.state), run.title)
        same_as = "" if first == run.title else first
        samples = float(experiment.partition.sizes.double().mean())
        records.append(make(run, result.metrics, samples, packed=len(runs), same_as=same_as))
    return records


def _record_unfinished(run: TableRun, results: Path, make: Callable[..., Record]) -> None:
    """Write down how far a stopped run got, if it was evaluated at all."""
    lines = folders.read_metrics(run.folder)
    if any("global_loss" in line or "validation_loss" in line for line in lines):
        append_record(results / UNFINISHED, make(run, lines))


def _record(
    run: TableRun,
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
        run.table,
        run.label,
        without_root(run.settings),
        changes=run.changes,
        metrics=metrics,
        steps=(count_steps(run.settings, samples) or 0) * len(metrics) // run.settings.rounds,
        engine="serial" if fallen else engine,  # what engines fall back to
        fell_back=fallen[0] if fallen else "",
        commit=commit,
        packed=packed,
        same_as=same_as,
        folder=run.folder,
    )
