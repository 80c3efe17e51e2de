"""All runs of a command: checked before the first writes anything, trained, and told in one table and report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from fedwidth.analysis.wording import plural
from fedwidth.cli.runs.checks import check_engine, check_folders, check_runs
from fedwidth.cli.runs.planned_run import PlannedRun, progress_titles
from fedwidth.cli.runs.progress import ProgressDisplay, show_progress
from fedwidth.cli.runs.resolved import resolve_runs
from fedwidth.cli.runs.results import compare_runs, print_results, write_results
from fedwidth.cli.runs.side_by_side import choose_number, run_side_by_side
from fedwidth.cli.runs.stop import stop_signal
from fedwidth.cli.runs.training import RunOptions, Summary, each_text_once, once, run_in_turn, run_pack, say_aside
from fedwidth.engines.packed.limits import why_not_pack
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment, Stopped
from fedwidth.report import write_report
from fedwidth.run.about import About
from fedwidth.run.cache import Cache
from fedwidth.run.folder import GROUP_LOCK, clear_folder, holds_run, locked
from fedwidth.run.lockstep.packing import check_for_packing, group_for_packing, use_packed_engine
from fedwidth.run.tracking.tracker import check_tracker

Pack = tuple[Sequence[int], Sequence[Experiment]]
"""Numbers of runs that train as one batch, and their experiments."""


def run_all(
    runs: Sequence[PlannedRun],
    folder: Path,
    cache: Cache,
    *,
    resume: bool,
    overwrite: bool,
    track: str,
    packed: bool = False,
    at_a_time: int = 0,
    about: About | None = None,
) -> int:
    """Check all runs, train them, print the table and write the report; `at_a_time` is 0 where the machine decides."""
    about = about or About()
    for run in runs:
        check_engine(run.settings)
    if packed:
        if len(runs) == 1:
            raise OptionError("--packed trains several runs as one batch, and here is one: give --seeds 1,2,3")
        for run in runs:
            check_for_packing(run.settings)
    check_tracker(track)
    runs = resolve_runs(runs, cache)
    check_runs(runs, cache)
    packs: list[Pack] = []
    if packed:
        packs, reason = find_packs(runs, cache)
        chosen = {number: each.settings for pack in packs for number, each in zip(*pack, strict=True)}
        runs = [replace(run, settings=chosen.get(number, run.settings)) for number, run in enumerate(runs)]
    check_folders(runs, folder, resume=resume, overwrite=overwrite)
    if packed and not packs:
        raise OptionError(f"--packed cannot train these runs as one batch: {reason}")
    missing = [run.title for run in runs if not holds_run(run.folder)] if resume else []

    def begin() -> None:
        if missing and len(missing) == len(runs):
            say_aside(f"nothing to resume in {folder} yet: started from the beginning")
        elif missing:
            titles = ", ".join(dict.fromkeys(missing))
            say_aside(f"{plural(len(missing), 'run')} not begun in {folder} yet will be trained, too: {titles}")
        about.write(folder)

    with ExitStack() as stack:
        inside = any(run.folder != folder for run in runs)
        if inside:
            stack.enter_context(locked(folder, GROUP_LOCK))
            if overwrite:  # all at once: the folder of the main run holds those of the others
                for each in (folder, *(run.folder for run in runs)):
                    clear_folder(each)
        stop = stack.enter_context(stop_signal())
        display = stack.enter_context(show_progress(progress_titles(runs), [run.settings.rounds for run in runs]))
        options = RunOptions(resume, overwrite and not inside, track, once(begin), each_text_once(say_aside))
        try:
            summaries = _train_all(runs, packs, cache, options, display, at_a_time=at_a_time, stop=stop)
        except Stopped as stopped:
            again = "--resume instead of --overwrite" if overwrite else "--resume"
            print(f"{stopped}; everything is saved. Go on with the same command and {again}", file=sys.stderr)
            return 1
    compared = compare_runs(runs, summaries, chosen=bool(about.over))
    print_results(runs, summaries, compared, title=about.title)
    if [run.folder for run in runs] != [folder]:
        write_results(folder, runs, summaries, compared)
    print(f"report: {write_report([folder], folder / 'report.html', own_models=True)}")
    return 0


def find_packs(runs: Sequence[PlannedRun], cache: Cache) -> tuple[list[Pack], str]:
    """The runs that train as one batch: all, or groups of those that can; and why not all of them do."""
    experiments, reason = _try_pack([cache.experiment(run.settings) for run in runs])
    if experiments:
        return [(range(len(runs)), experiments)], ""
    packs: list[Pack] = []
    for numbers in group_for_packing([run.settings for run in runs]):
        if len(numbers) > 1:
            experiments, _ = _try_pack([cache.experiment(runs[number].settings) for number in numbers])
            packs += [(numbers, experiments)] if experiments else []
    return packs, reason


def _try_pack(experiments: Sequence[Experiment]) -> tuple[Sequence[Experiment], str]:
    """These experiments with the engine that trains them as one batch; none, and the reason, where they cannot."""
    use_packed_engine(experiments)
    reason = why_not_pack([experiment.trainer for experiment in experiments])
    return ((), reason) if reason else (experiments, "")


def _train_all(
    runs: Sequence[PlannedRun],
    packs: Sequence[Pack],
    cache: Cache,
    options: RunOptions,
    display: ProgressDisplay,
    *,
    at_a_time: int,
    stop: Callable[[], bool],
) -> list[Summary]:
    """The packs one after the other, then the other runs, several at a time where that is faster."""
    found: dict[int, Summary] = {}
    for numbers, experiments in packs:
        for number in numbers:
            display.start(number)
        tell = [display.update(number) for number in numbers]
        done = run_pack([runs[number] for number in numbers], experiments, options, tell, stop=stop)
        for number, (summary, last) in zip(numbers, done, strict=True):
            found[number] = summary
            display.finish(number, last)
    packed = {number for numbers, _ in packs for number in numbers}
    left = [(number, run) for number, run in enumerate(runs) if number not in packed]
    several = choose_number(at_a_time, [run for _, run in left], cache.experiment, resume=options.resume)
    if several > 1:
        found |= run_side_by_side(left, several, options, display, stop=stop)
    else:
        found |= run_in_turn(left, cache.experiment, options, display, stop=stop)
    return [found[number] for number in range(len(runs))]
