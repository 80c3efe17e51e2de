"""How long jobs will take, and what is said of it while they run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedwidth.reproduce.durations import estimate_seconds
from fedwidth.reproduce.jobs import Job, title_of
from fedwidth.reproduce.records import read_all
from fedwidth.run import folder as folders

PAUSE = 10.0
"""Seconds between two lines about runs that train as one batch."""


def make_teller(jobs: Sequence[Job], say: Callable[[str], None]) -> Callable[[int, dict[str, Any]], None]:
    """Says how runs stand after an evaluation, and how long the rest will take at the pace since they went on."""
    began, rounds = time.monotonic(), max(job.settings.rounds for job in jobs)
    before = min(len(folders.read_metrics(job.folder)) for job in jobs)
    accuracies: dict[int, float] = {}
    told = began

    def tell(number: int, line: dict[str, Any]) -> None:
        nonlocal told
        if "global_accuracy" not in line:
            return
        accuracies[number] = 100 * line["global_accuracy"]
        # Of many runs the last one speaks for all, every few seconds.
        now = time.monotonic()
        if len(jobs) > 1 and (number < len(jobs) - 1 or (now - told < PAUSE and line["round"] < rounds)):
            return
        told = now
        pace = (now - began) / max(1, line["round"] - before)
        left = show_time(pace * (rounds - line["round"]))
        mean = sum(accuracies.values()) / len(accuracies)
        shown = f"{mean:.2f} %" if len(jobs) == 1 else f"{mean:.2f} % on average"
        say(f"{title_of(jobs)}: round {line['round']} of {rounds}, {shown}, {left} left")

    return tell


def count_seconds_left(jobs: Sequence[Job], results: Path) -> float | None:
    """What the jobs will take: those begun at their own pace, the others at that of finished runs like them."""
    records, total = read_all(results), 0.0
    known: dict[str, float | None] = {}
    for job in jobs:
        lines = folders.read_metrics(job.folder)
        if lines:
            total += lines[-1]["seconds"] / len(lines) * (job.settings.rounds - len(lines))
            continue
        if job.key not in known:
            known[job.key] = estimate_seconds(job.settings, records)
        expected = known[job.key]
        if expected is None:
            return None
        total += expected
    return total


def show_time_left(jobs: Sequence[Job], results: Path) -> str:
    """The same, for people."""
    if not jobs:
        return "nothing is left to do"
    seconds = count_seconds_left(jobs, results)
    return "no run to estimate the time from yet" if seconds is None else f"about {show_time(seconds)} to go"


def show_time(seconds: float) -> str:
    """Seconds for people.

    >>> show_time(40), show_time(150), show_time(9000)
    ('40 s', '3 min', '2.5 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
