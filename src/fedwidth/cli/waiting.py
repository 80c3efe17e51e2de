"""`fedwidth reproduce --queue`: run what waits in a queue, or list it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedwidth.cli.jobs import check_engine
from fedwidth.cli.tables import print_table
from fedwidth.reproduce.forecast import show_time
from fedwidth.reproduce.queue import find_standing, work_through
from fedwidth.reproduce.queue_file import read_queue
from fedwidth.reproduce.records import read_all
from fedwidth.reproduce.words import plural


def run_queue(path: Path, only: Sequence[str], **given: Any) -> int:
    """Work through the queue; the exit code says whether every job that was begun could be run.

    `given` are the arguments of `work_through`. The whole queue is checked before anything runs.
    """
    entries = read_queue(path, only)
    for entry in entries:
        for job in entry.jobs(given["changes"], given["work"]):
            check_engine(job.settings)
    return 1 if work_through(entries, **given).failed else 0


def list_queue(path: Path, only: Sequence[str], *, changes: Sequence[str], results: Path, work: Path) -> None:
    """Print what is done, what remains, and what that is expected to take."""
    records = read_all(results)
    standings = [find_standing(entry, records, changes=changes, work=work) for entry in read_queue(path, only)]
    rows = [
        [
            standing.entry.name,
            standing.state,
            f"{standing.entry.seconds:.0f}",
            f"{sum(record.seconds for record in standing.records):.0f}" if standing.records else "–",
            standing.entry.asks,
        ]
        for standing in standings
    ]
    print_table(["job", "state", "seconds expected", "taken", "asks"], rows)
    left = [standing.seconds_left for standing in standings if len(standing.records) < len(standing.jobs)]
    print(f"{plural(len(left), 'job')} left, about {show_time(sum(left))}" if left else "nothing is left to do")
