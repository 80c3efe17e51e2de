"""The queue of `fedwidth reproduce --queue`: working through it, and listing it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedwidth.analysis.wording import plural, show_time
from fedwidth.cli.runs.checks import check_engine
from fedwidth.cli.tables import print_table
from fedwidth.reproduce.queue import find_progress, work_through
from fedwidth.reproduce.queue_file import read_queue
from fedwidth.reproduce.records import read_all


def run_queue(path: Path, only: Sequence[str], **given: Any) -> int:
    """Work through the queue; the exit code says whether every job that was begun could be run.

    `given` are the arguments of `work_through`. The whole queue is checked before anything runs.
    """
    jobs = read_queue(path, only)
    for job in jobs:
        for run in job.runs(given["changes"], given["work"]):
            check_engine(run.settings)
    return 1 if work_through(jobs, **given).failed else 0


def list_queue(path: Path, only: Sequence[str], *, changes: Sequence[str], results: Path, work: Path) -> None:
    """Print what is done, what remains, and what that is expected to take."""
    records = read_all(results)
    found = [find_progress(job, records, changes=changes, work=work) for job in read_queue(path, only)]
    rows = [
        [
            progress.job.name,
            progress.state,
            f"{progress.job.seconds:.0f}",
            f"{sum(record.seconds for record in progress.records):.0f}" if progress.records else "–",
            progress.job.asks,
        ]
        for progress in found
    ]
    print_table(["job", "state", "seconds expected", "taken", "asks"], rows)
    left = [progress.seconds_left for progress in found if not progress.is_done]
    print(f"{plural(len(left), 'job')} left, about {show_time(sum(left))}" if left else "nothing is left to do")
