"""Running several runs one after the other: all checked before the first writes anything, one table at the end."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedwidth import folder as folders
from fedwidth.capacity import Capacities
from fedwidth.commands.progress import show_progress
from fedwidth.commands.results import print_results, write_results
from fedwidth.data import Data, Partition
from fedwidth.engines import choose_engine
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.experiment import Experiment, Result, Stopped
from fedwidth.methods import method
from fedwidth.parts import build_model, find_device, load_data, plan_model, split_data
from fedwidth.plan import Plan
from fedwidth.report import write_report
from fedwidth.settings import Settings
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
        self._data: dict[str, Data] = {}
        self._partitions: dict[str, Partition] = {}
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
        source, split, _ = self._keys(job.settings)
        return Experiment(job.settings, data=self._data[source], partition=self._partitions[split])

    def _add(self, settings: Settings) -> None:
        find_device(settings.device)
        source, split, model = self._keys(settings)
        if source not in self._data:
            self._data[source] = load_data(settings)
        data = self._data[source]
        if split not in self._partitions:
            self._partitions[split] = split_data(settings, data)
        if model not in self._plans:
            _, self._plans[model] = plan_model(build_model(settings, data), settings, data)
        chosen = method(settings.method.name, **settings.method.options)
        cohort = list(enumerate(Capacities.parse(settings.devices.capacities).values))
        chosen.assign(self._plans[model], cohort, round=0, seed=settings.seed)

    @staticmethod
    def _keys(settings: Settings) -> tuple[str, str, str]:
        """What data, partition and plan depend on."""
        data = settings.data
        source = json.dumps([data.name, data.root, data.options], sort_keys=True)
        split = json.dumps([asdict(data), settings.seed], sort_keys=True)
        return source, split, json.dumps([source, asdict(settings.model)], sort_keys=True)


def run_jobs(jobs: Sequence[Job], folder: Path, *, resume: bool, overwrite: bool, track: str) -> int:
    """Check all jobs, run them one after the other, print the table and write the report."""
    check_folders(jobs, folder, resume=resume, overwrite=overwrite)
    check_tracker(track)
    parts = Parts(jobs)
    if resume and not any(folders.holds_run(job.folder) for job in jobs):
        print(f"nothing to resume in {folder} yet: starting from the beginning", file=sys.stderr)
    results: list[Result] = []
    with ExitStack() as stack:
        if len(jobs) > 1:
            stack.enter_context(folders.locked(folder, folders.GROUP_LOCK))
            if overwrite:
                folders.clear(folder)
        stop = stack.enter_context(stop_signal())
        shown = stack.enter_context(show_progress([job.title for job in jobs], [j.settings.rounds for j in jobs]))
        for number, job in enumerate(jobs):
            experiment = parts.experiment(job)
            if job.settings.engine == "auto":
                print(f"{job.title}: {choose_engine(experiment.trainer)}", file=sys.stderr)
            tracker = make_tracker(track, job.title, job.settings, job.folder)
            shown.start(number)
            try:
                result = experiment.run(
                    job.folder,
                    resume=resume,
                    overwrite=overwrite,
                    on_round=_both(shown.update(number), tracker.log),
                    stop=stop,
                )
            except Stopped as stopped:
                again = "--resume instead of --overwrite" if overwrite else "--resume"
                message = f"{job.title}: {stopped}; everything is saved. Go on with the same command and {again}"
                break
            finally:
                tracker.close()
            shown.finish(number, result.metrics[-1])
            results.append(result)
        else:
            message = ""
    if message:
        print(message, file=sys.stderr)
        return 1
    summaries = [result.summary for result in results]
    print_results(jobs, summaries)
    if [job.folder for job in jobs] != [folder]:
        write_results(folder, jobs, summaries)
    print(f"report: {write_report([folder], folder / 'report.html', own_models=True)}")
    return 0


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


def _both(first: Callable[[Any], None], second: Callable[[Any], None]) -> Callable[[Any], None]:
    def call(line: Any) -> None:
        first(line)
        second(line)

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
