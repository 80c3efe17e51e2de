"""Running several runs one after the other: all checked before the first writes anything, one table at the end."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedwidth import folder as folders
from fedwidth.capacity import Capacities
from fedwidth.commands.progress import Shown, show_progress
from fedwidth.commands.results import print_results, write_results
from fedwidth.engines import choose_engine
from fedwidth.engines.packed_limits import why_not_pack
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.experiment import Experiment, Result, Stopped
from fedwidth.method_settings import method_of
from fedwidth.parts import build_model, find_device, plan_model
from fedwidth.plan import Plan
from fedwidth.report import write_report
from fedwidth.settings import Settings
from fedwidth.shelf import Shelf
from fedwidth.together import check_for_packing, explain_engine, run_together, settle_engine
from fedwidth.tracking import check_tracker, make_tracker


@dataclass(frozen=True)
class Job:
    """One run of several: runs that differ in their seed alone share a label, and are one row of the table."""

    label: str
    title: str
    settings: Settings
    folder: Path


class Parts:
    """What the jobs need, each distinct part made once; whatever cannot work is refused while they are made."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._shelf = Shelf()
        self._plans: dict[str, Plan] = {}
        for job in jobs:
            try:
                self._add(job.settings)
            except FedwidthError as error:
                if job is jobs[0]:
                    raise
                raise type(error)(f"run '{job.label}': {error}") from error

    def experiment(self, job: Job) -> Experiment:
        """The experiment of a job."""
        return self._shelf.experiment(job.settings)

    def _add(self, settings: Settings) -> None:
        find_device(settings.device)
        data = self._shelf.data(settings)
        self._shelf.partition(settings)
        model = json.dumps([Shelf.source(settings), asdict(settings.model)], sort_keys=True)
        if model not in self._plans:
            _, self._plans[model] = plan_model(build_model(settings, data), settings, data)
        chosen = method_of(settings)
        cohort = list(enumerate(Capacities.parse(settings.devices.capacities).values))
        if not chosen.reads:  # there is neither state nor memory yet
            chosen.assign(self._plans[model], cohort, round=0, seed=settings.seed)


@dataclass(frozen=True)
class Wishes:
    """How the jobs are to be run."""

    resume: bool
    overwrite: bool
    track: str
    say_fresh: Callable[[Any], None]
    """Called after each round: says, once, that there was nothing to resume."""


def run_jobs(
    jobs: Sequence[Job], folder: Path, *, resume: bool, overwrite: bool, track: str, packed: bool = False
) -> int:
    """Check all jobs, run them one after the other or as one batch, print the table and write the report."""
    for job in jobs:
        check_engine(job.settings)
    if packed:
        if len(jobs) == 1:
            raise OptionError("--packed trains several runs as one batch, and here is one: give --seeds 1,2,3")
        for job in jobs:
            check_for_packing(job.settings)
    check_tracker(track)
    parts = Parts(jobs)
    experiments = [parts.experiment(job) for job in jobs] if packed else []
    if packed:
        settle_engine(experiments)
        jobs = [replace(job, settings=run.settings) for job, run in zip(jobs, experiments, strict=True)]
    check_folders(jobs, folder, resume=resume, overwrite=overwrite)
    fresh = resume and not any(folders.holds_run(job.folder) for job in jobs)
    say_fresh = _say_once(f"nothing to resume in {folder} yet: started from the beginning" if fresh else "")
    if packed:
        reason = why_not_pack([experiment.trainer for experiment in experiments])
        if reason:
            raise OptionError(f"--packed cannot train these runs as one batch: {reason}")
    with ExitStack() as stack:
        if len(jobs) > 1:
            stack.enter_context(folders.locked(folder, folders.GROUP_LOCK))
            if overwrite:
                folders.clear(folder)
        stop = stack.enter_context(stop_signal())
        shown = stack.enter_context(show_progress([job.title for job in jobs], [j.settings.rounds for j in jobs]))
        wishes = Wishes(resume, overwrite, track, say_fresh)
        try:
            if packed:
                results = _run_together(jobs, experiments, wishes, shown, stop=stop)
            else:
                results = [
                    _run_one(job, number, parts, wishes, shown=shown, stop=stop) for number, job in enumerate(jobs)
                ]
        except Stopped as stopped:
            again = "--resume instead of --overwrite" if overwrite else "--resume"
            print(f"{stopped}; everything is saved. Go on with the same command and {again}", file=sys.stderr)
            return 1
    summaries = [result.summary for result in results]
    print_results(jobs, summaries)
    if [job.folder for job in jobs] != [folder]:
        write_results(folder, jobs, summaries)
    print(f"report: {write_report([folder], folder / 'report.html', own_models=True)}")
    return 0


def _run_one(job: Job, number: int, parts: Parts, wishes: Wishes, *, shown: Shown, stop: Callable[[], bool]) -> Result:
    experiment = parts.experiment(job)
    tracker = make_tracker(wishes.track, job.title, job.settings, job.folder)
    taken = f"{job.title}: {choose_engine(experiment.trainer)}" if job.settings.engine == "auto" else ""
    if memory := experiment.explain_memory():
        taken = "\n".join(filter(None, [taken, f"{job.title}: {memory}"]))
    shown.start(number)
    try:
        result = experiment.run(
            job.folder,
            resume=wishes.resume,
            overwrite=wishes.overwrite,
            on_round=_each(wishes.say_fresh, _say_once(taken), shown.update(number), tracker.log),
            on_clients=shown.clients(number),
            stop=stop,
        )
    except Stopped as stopped:
        raise Stopped(f"{job.title}: {stopped}") from None
    finally:
        tracker.close()
    shown.finish(number, result.metrics[-1])
    return result


def _run_together(
    jobs: Sequence[Job], experiments: Sequence[Experiment], wishes: Wishes, shown: Shown, *, stop: Callable[[], bool]
) -> list[Result]:
    trackers = [make_tracker(wishes.track, job.title, job.settings, job.folder) for job in jobs]
    say = _say_once(f"{len(jobs)} runs as one batch, engine: {explain_engine(experiments[0])}")
    tell = [_each(wishes.say_fresh, say, shown.update(number), tracker.log) for number, tracker in enumerate(trackers)]
    for number in range(len(jobs)):
        shown.start(number)
    try:
        results = run_together(
            experiments,
            [job.folder for job in jobs],
            resume=wishes.resume,
            overwrite=wishes.overwrite,
            on_round=lambda number, line: tell[number](line),
            stop=stop,
        )
    finally:
        for tracker in trackers:
            tracker.close()
    for number, result in enumerate(results):
        shown.finish(number, result.metrics[-1])
    return results


def check_folders(jobs: Sequence[Job], folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse the folders of the jobs, or the one that holds them all, where another run is in the way."""
    places = [job.folder for job in jobs]
    if len(set(places)) < len(places):
        raise OptionError("two of the runs are the same: give each value once")
    for job in jobs:
        folders.check(job.folder, job.settings, resume=resume, overwrite=overwrite)
    if folder in places or overwrite:
        return
    if (folder / folders.CONFIG).exists() or (not resume and folders.holds_run(folder)):
        raise OptionError(f"{folder} holds another run already; give --overwrite or another --out")


def check_engine(settings: Settings) -> None:
    """Refuse, before anything is written or cleared, an engine that cannot be had.

    Slots without a GPU too: from Python they train on the CPU, but nobody who asks for CUDA wants that.
    """
    if settings.engine == "ray" and find_spec("ray") is None:
        raise OptionError("engine = 'ray' needs the package ray: pip install 'fedwidth[ray]'")
    if settings.engine == "cuda" and settings.device == "cpu":
        raise OptionError("engine is cuda, but device is cpu: set device=cuda, or engine=auto for the CPU")


def _each(*calls: Callable[[Any], None]) -> Callable[[Any], None]:
    def call(line: Any) -> None:
        for each in calls:
            each(line)

    return call


def _say_once(text: str) -> Callable[[Any], None]:
    """Says the text when first called, which is after a round: what is wrong with the input shows before the first
    one, and its message is to be the only line.
    """
    left = [text] if text else []

    def call(_: Any) -> None:
        while left:
            print(left.pop(), file=sys.stderr)

    return call


@contextmanager
def stop_signal() -> Iterator[Callable[[], bool]]:
    """Ctrl-C or a termination signal lets the round finish; a second Ctrl-C stops at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        del number, frame
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("\nfinishing this round and saving; press Ctrl-C again to stop at once", file=sys.stderr)

    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, ask)
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
