"""The section about the queue: questions asked beside the published tables, and what came of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedwidth.analysis.wording import over_seeds, plural, show_time
from fedwidth.config.schema import build
from fedwidth.reproduce.queue import JobProgress, find_progress
from fedwidth.reproduce.queue_file import Job, read_queue
from fedwidth.reproduce.records import Record
from fedwidth.settings import Settings
from reproduction.markdown import make_table
from reproduction.yardsticks import Measured, Yardsticks

QUEUE = "queue.toml"
BENCHMARK = "benchmark/"
"""How the names of recipes begin that answer to no paper and have a page of their own."""
MAX_SHOWN = 6
"""Up to so many runs of a job have a line each; those of a larger one stand in the tables of their recipes."""


def queue_texts(results: Path, records: Sequence[Record], yardsticks: Yardsticks) -> Iterator[str]:
    """The paragraphs of the section: a line for every run that was made, and what waits; nothing without a queue."""
    path = results / QUEUE
    if not path.exists():
        return
    jobs = [job for job in read_queue(path) if not job.recipes[0].startswith(BENCHMARK)]
    # Runs that are under way on this machine are nobody's business but its own.
    asked = [find_progress(job, records, work=path / "none") for job in jobs]
    yield "## Asked beside the tables"
    yield (
        "Experiments that change one thing in a recipe to find out what explains a difference, in the order of"
        " `results/queue.toml` (`fedwidth reproduce --queue results/queue.toml`). They stand in no table."
    )
    found = [pair for progress in asked for pair in _rows(progress)]
    if found:
        more, measured = yardsticks.columns([run for _, run in found])
        rows = [[*row[:-1], *cells, row[-1]] for (row, _), cells in zip(found, measured, strict=True)]
        columns = ["job", "asks", "run", "last round", "best round", "seeds", *more, "answer"]
        yield make_table(columns, rows, left=3)
    left = [progress for progress in asked if not progress.is_done]
    if left:
        named = ", ".join(f"`{progress.job.name}`" for progress in left)
        seconds = sum(progress.seconds_left for progress in left)
        yield f"{plural(len(left), 'job')} left, about {show_time(seconds)} on one H200: {named}."


def _rows(progress: JobProgress) -> Iterator[tuple[list[str], Measured]]:
    """Each row with the run it is about, whose yardsticks may stand in other rows."""
    job, labels = progress.job, list(dict.fromkeys(record.label for record in progress.records))
    if len(labels) > MAX_SHOWN:
        many = Measured(progress.runs[0].settings, {})
        yield [f"`{job.name}`", job.asks, _recipes(job), "", "", "", job.answer], many
        return
    names = {run.label: run.settings.name or run.label for run in progress.runs}
    for label in labels:
        mine = [record for record in progress.records if record.label == label]
        accuracies = {record.seed: 100 * record.final_accuracy for record in mine}
        row = [
            f"`{job.name}`",
            job.asks,
            names.get(label, label),
            over_seeds(100 * record.final_accuracy for record in mine),
            over_seeds(100 * record.best_accuracy for record in mine),
            ", ".join(str(record.seed) for record in mine),
            job.answer,
        ]
        yield row, Measured(build(Settings, mine[0].settings), accuracies)


def _recipes(job: Job) -> str:
    names: Sequence[str] = [f"`{name}`" for name in job.recipes]
    return f"above, {' and '.join(names)}"
