"""What is said while runs train: how far they are, how accurate, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedwidth.analysis.wording import show_time
from fedwidth.reproduce.estimate import estimate_seconds
from fedwidth.reproduce.records import read_all
from fedwidth.reproduce.table_runs import TableRun, title_of
from fedwidth.run import folder as folders

SECONDS_BETWEEN_LINES = 10.0
"""Runs that train as one batch are evaluated often; they say no more than a line in so many seconds."""


def make_reporter(runs: Sequence[TableRun], say: Callable[[str], None]) -> Callable[[int, dict[str, Any]], None]:
    """A function that is given the metrics of a round, with the number of the run, and says how the runs stand.

    The time that is left is reckoned from the pace since the runs went on.
    """
    began, rounds = time.monotonic(), max(run.settings.rounds for run in runs)
    before = min(len(folders.read_metrics(run.folder)) for run in runs)
    accuracies: dict[int, float] = {}
    said = began

    def report(number: int, line: dict[str, Any]) -> None:
        nonlocal said
        if "global_accuracy" not in line:
            return
        accuracies[number] = 100 * line["global_accuracy"]
        # Of many runs the last one speaks for all, every few seconds.
        now = time.monotonic()
        early = now - said < SECONDS_BETWEEN_LINES and line["round"] < rounds
        if len(runs) > 1 and (number < len(runs) - 1 or early):
            return
        said = now
        pace = (now - began) / max(1, line["round"] - before)
        left = show_time(pace * (rounds - line["round"]))
        mean = sum(accuracies.values()) / len(accuracies)
        shown = f"{mean:.2f} %" if len(runs) == 1 else f"{mean:.2f} % on average"
        say(f"{title_of(runs)}: round {line['round']} of {rounds}, {shown}, {left} left")

    return report


def count_seconds_left(runs: Sequence[TableRun], results: Path) -> float | None:
    """How long the runs will take: those begun at their own pace, the others at that of finished runs like them."""
    records, total = read_all(results), 0.0
    known: dict[str, float | None] = {}
    for run in runs:
        lines = folders.read_metrics(run.folder)
        if lines:
            total += lines[-1]["seconds"] / len(lines) * (run.settings.rounds - len(lines))
            continue
        if run.key not in known:
            known[run.key] = estimate_seconds(run.settings, records)
        expected = known[run.key]
        if expected is None:
            return None
        total += expected
    return total


def show_time_left(runs: Sequence[TableRun], results: Path) -> str:
    """How long the runs will take, as a part of a sentence."""
    if not runs:
        return "nothing is left to do"
    seconds = count_seconds_left(runs, results)
    return "no run to estimate the time from yet" if seconds is None else f"about {show_time(seconds)} to go"
