"""The ways to train several runs: one after the other, or those that fit together as one batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedwidth.cli.runs.first_lines import (
    explain_memory,
    explain_server_width,
    explain_shares,
    explain_unfit,
    explain_what_is_idle,
)
from fedwidth.cli.runs.planned_run import PlannedRun
from fedwidth.cli.runs.progress import ProgressDisplay
from fedwidth.engines import choose_engine
from fedwidth.experiment import Experiment, Stopped
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.run.lockstep.packing import explain_packed_engine
from fedwidth.run.tracking.tracker import make_tracker
from fedwidth.settings import Settings

Summary = dict[str, Any]
Line = dict[str, Any]
Tell = Callable[[Line], None]


@dataclass(frozen=True)
class RunOptions:
    """What a command asks of all its runs."""

    resume: bool
    overwrite: bool
    track: str
    first: Tell
    """Called after each round: does, once, what waits for the first one to end."""
    say: Callable[[str], None]
    """Says something about a run that is no result of it."""


def run_one(
    run: PlannedRun,
    experiment: Experiment,
    options: RunOptions,
    tell: Tell,
    *,
    stop: Callable[[], bool],
    clients: Callable[[int, int], None] = lambda *_: None,
) -> tuple[Summary, Line]:
    """Train one run; returns its summary and the metrics of its last round."""
    tracker = make_tracker(options.track, run.title, run.settings, run.folder)
    lines = [str(choose_engine(experiment.trainer))] if run.settings.engine == "auto" else []
    lines += filter(None, [explain_memory(experiment), *explain_unfit(experiment)])

    def announce() -> None:
        tell_devices(experiment, options.say)
        if lines:
            options.say("\n".join(f"{run.title}: {line}" for line in lines))

    try:
        result = experiment.run(
            run.folder,
            resume=options.resume,
            overwrite=options.overwrite,
            on_round=each(options.first, once(announce), tell, tracker.log),
            on_clients=clients,
            stop=stop,
        )
    except Stopped as stopped:
        raise Stopped(f"{run.title}: {stopped}") from None
    finally:
        tracker.close()
    if spent := result.summary.get("privacy", {}).get("stopped"):
        options.say(f"{run.title}: {spent}; --resume goes on with a larger privacy.epsilon")
    return result.summary, result.metrics[-1]


def run_pack(
    runs: Sequence[PlannedRun],
    experiments: Sequence[Experiment],
    options: RunOptions,
    tell: Sequence[Tell],
    *,
    stop: Callable[[], bool],
) -> list[tuple[Summary, Line]]:
    """Train runs as one batch."""
    trackers = [make_tracker(options.track, run.title, run.settings, run.folder) for run in runs]
    text = f"{len(runs)} runs as one batch, engine: {explain_packed_engine(experiments[0])}"

    def announce() -> None:
        for experiment in experiments:
            tell_devices(experiment, options.say)
        options.say(text)

    told = once(announce)
    calls = [each(options.first, told, one, tracker.log) for one, tracker in zip(tell, trackers, strict=True)]
    try:
        results = run_in_lockstep(
            experiments,
            [run.folder for run in runs],
            resume=options.resume,
            overwrite=options.overwrite,
            on_round=lambda number, line: calls[number](line),
            stop=stop,
        )
    finally:
        for tracker in trackers:
            tracker.close()
    return [(result.summary, result.metrics[-1]) for result in results]


def run_in_turn(
    runs: Sequence[tuple[int, PlannedRun]],
    make: Callable[[Settings], Experiment],
    options: RunOptions,
    display: ProgressDisplay,
    *,
    stop: Callable[[], bool],
) -> dict[int, Summary]:
    """Train numbered runs one after the other."""
    found = {}
    for number, run in runs:
        experiment = make(run.settings)
        display.start(number)
        found[number], last = run_one(
            run, experiment, options, display.update(number), stop=stop, clients=display.clients(number)
        )
        display.finish(number, last)
    return found


def tell_devices(experiment: Experiment, say: Callable[[str], None]) -> None:
    """Say what the devices have of the model, where none of them has all of it, that too, and what will do little."""
    told = explain_shares(experiment), explain_server_width(experiment), *explain_what_is_idle(experiment)
    for text in filter(None, told):
        say(text)


def say_aside(text: str) -> None:
    """Print a line that is no result, on standard error."""
    print(text, file=sys.stderr)


def each_text_once(say: Callable[[str], None]) -> Callable[[str], None]:
    """Says a text unless it has said the same before: many runs of a sweep have one model."""
    said: set[str] = set()

    def say_new(text: str) -> None:
        if text not in said:
            said.add(text)
            say(text)

    return say_new


def each(*calls: Tell) -> Tell:
    """One call that makes all of them."""

    def call(line: Line) -> None:
        for one in calls:
            one(line)

    return call


def once(act: Callable[[], object]) -> Tell:
    """A call that acts the first time only.

    It is made after a round: what is wrong with the input shows before the first one, and its message is to be the
    only line.
    """
    left = [act]

    def call(_: Line) -> None:
        while left:
            left.pop()()

    return call
