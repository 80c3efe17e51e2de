"""Running several runs: all checked before the first writes anything, one table at the end."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedwidth.cli.job import Job
from fedwidth.cli.progress import Shown, show_progress
from fedwidth.cli.results import compare_jobs, print_results, write_results
from fedwidth.cli.side_by_side import choose_number, run_side_by_side
from fedwidth.cli.training import Summary, Wishes, once, run_in_turn, run_pack, say_aside
from fedwidth.config.build import build_model, find_device, plan_model
from fedwidth.config.method_settings import method_of
from fedwidth.devices.capacity import Capacities
from fedwidth.engines.packed.limits import why_not_pack
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.experiment import Experiment, Stopped
from fedwidth.plan import Plan
from fedwidth.report import write_report
from fedwidth.run import folder as folders
from fedwidth.run.about import About
from fedwidth.run.cache import Cache
from fedwidth.run.packing import check_for_packing, group_for_packing, use_packed_engine
from fedwidth.run.tracking import check_tracker
from fedwidth.settings import Settings

Pack = tuple[Sequence[int], Sequence[Experiment]]
"""Numbers of jobs that train as one batch, and their experiments."""


class Parts:
    """What the jobs need, each distinct part made once; whatever cannot work is refused while they are made."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._cache = Cache()
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
        return self._cache.experiment(job.settings)

    def _add(self, settings: Settings) -> None:
        find_device(settings.device)
        data = self._cache.data(settings)
        self._cache.partition(settings)
        model = json.dumps([Cache.source(settings), asdict(settings.model)], sort_keys=True)
        if model not in self._plans:
            _, self._plans[model] = plan_model(build_model(settings, data), settings, data)
        chosen = method_of(settings)
        cohort = list(enumerate(Capacities.parse(settings.devices.capacities).values))
        if not chosen.reads:  # there is neither state nor memory yet
            chosen.assign(self._plans[model], cohort, round=0, seed=settings.seed)


def run_jobs(
    jobs: Sequence[Job],
    folder: Path,
    *,
    resume: bool,
    overwrite: bool,
    track: str,
    packed: bool = False,
    at_a_time: int = 0,
    about: About | None = None,
) -> int:
    """Check all jobs, run them, print the table and write the report; `at_a_time` is 0 where the machine decides."""
    about = about or About()
    for job in jobs:
        check_engine(job.settings)
    if packed:
        if len(jobs) == 1:
            raise OptionError("--packed trains several runs as one batch, and here is one: give --seeds 1,2,3")
        for job in jobs:
            check_for_packing(job.settings)
    check_tracker(track)
    parts = Parts(jobs)
    packs: list[Pack] = []
    if packed:
        packs, reason = find_packs(jobs, parts)
        settled = {number: each for pack in packs for number, each in zip(*pack, strict=True)}
        jobs = [replace(j, settings=settled[n].settings) if n in settled else j for n, j in enumerate(jobs)]
    check_folders(jobs, folder, resume=resume, overwrite=overwrite)
    if packed and not packs:
        raise OptionError(f"--packed cannot train these runs as one batch: {reason}")
    fresh = resume and not any(folders.holds_run(job.folder) for job in jobs)

    def begin() -> None:
        if fresh:
            say_aside(f"nothing to resume in {folder} yet: started from the beginning")
        about.write(folder)

    with ExitStack() as stack:
        if len(jobs) > 1:
            stack.enter_context(folders.locked(folder, folders.GROUP_LOCK))
            if overwrite:  # all at once: the folder of the main run holds those of the others
                for place in (folder, *(job.folder for job in jobs)):
                    folders.clear_folder(place)
        stop = stack.enter_context(stop_signal())
        shown = stack.enter_context(show_progress([job.title for job in jobs], [j.settings.rounds for j in jobs]))
        wishes = Wishes(resume, overwrite and len(jobs) == 1, track, once(begin))
        try:
            summaries = _run_all(jobs, packs, parts, wishes, shown, at_a_time=at_a_time, stop=stop)
        except Stopped as stopped:
            again = "--resume instead of --overwrite" if overwrite else "--resume"
            print(f"{stopped}; everything is saved. Go on with the same command and {again}", file=sys.stderr)
            return 1
    compared = compare_jobs(jobs, summaries, chosen=bool(about.over))
    print_results(jobs, summaries, compared, title=about.title)
    if [job.folder for job in jobs] != [folder]:
        write_results(folder, jobs, summaries, compared)
    print(f"report: {write_report([folder], folder / 'report.html', own_models=True)}")
    return 0


def find_packs(jobs: Sequence[Job], parts: Parts) -> tuple[list[Pack], str]:
    """The jobs that train as one batch: all, or those that go well together; and why not all of them do."""
    together, reason = _try_pack([parts.experiment(job) for job in jobs])
    if together:
        return [(range(len(jobs)), together)], ""
    packs: list[Pack] = []
    for numbers in group_for_packing([job.settings for job in jobs]):
        if len(numbers) > 1:
            together, _ = _try_pack([parts.experiment(jobs[number]) for number in numbers])
            packs += [(numbers, together)] if together else []
    return packs, reason


def _try_pack(experiments: Sequence[Experiment]) -> tuple[Sequence[Experiment], str]:
    """These experiments with the engine that trains them as one batch; none, and the reason, where they cannot."""
    use_packed_engine(experiments)
    reason = why_not_pack([experiment.trainer for experiment in experiments])
    return ((), reason) if reason else (experiments, "")


def _run_all(
    jobs: Sequence[Job],
    packs: Sequence[Pack],
    parts: Parts,
    wishes: Wishes,
    shown: Shown,
    *,
    at_a_time: int,
    stop: Callable[[], bool],
) -> list[Summary]:
    """The packs one after the other, then the other jobs, several at a time where that is faster."""
    found: dict[int, Summary] = {}
    for numbers, experiments in packs:
        for number in numbers:
            shown.start(number)
        tell = [shown.update(number) for number in numbers]
        done = run_pack([jobs[number] for number in numbers], experiments, wishes, tell, stop=stop)
        for number, (summary, last) in zip(numbers, done, strict=True):
            found[number] = summary
            shown.finish(number, last)
    packed = {number for numbers, _ in packs for number in numbers}
    left = [(number, job) for number, job in enumerate(jobs) if number not in packed]
    several = choose_number(at_a_time, [job for _, job in left], parts.experiment, resume=wishes.resume)
    if several > 1:
        found |= run_side_by_side(left, several, wishes, shown, stop=stop)
    else:
        found |= run_in_turn(left, parts.experiment, wishes, shown, stop=stop)
    return [found[number] for number in range(len(jobs))]


def check_folders(jobs: Sequence[Job], folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse the folders of the jobs, or the one that holds them all, where another run is in the way."""
    places = [job.folder for job in jobs]
    if len(set(places)) < len(places):
        raise OptionError("two of the runs are the same: give each value once")
    for job in jobs:
        folders.check_folder(job.folder, job.settings, resume=resume, overwrite=overwrite)
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
