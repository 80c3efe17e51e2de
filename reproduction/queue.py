"""What docs/results.md says of the queue: questions beside the published tables, and what came of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedwidth.config.schema import build
from fedwidth.reproduce.forecast import show_time
from fedwidth.reproduce.queue import Standing, find_standing
from fedwidth.reproduce.queue_file import Entry, read_queue
from fedwidth.reproduce.records import Record
from fedwidth.reproduce.words import markdown, over_seeds, plural
from fedwidth.settings import Settings
from reproduction.yardsticks import Asked, Yardsticks

QUEUE = "queue.toml"
BENCHMARK = "benchmark/"
"""Recipes that answer to no paper and have a page of their own."""
MAX_SHOWN = 6
"""Runs of a job up to which each has a line; those of a larger one stand in the tables of their recipes."""


def queue_texts(results: Path, records: Sequence[Record], yardsticks: Yardsticks) -> Iterator[str]:
    """A line for every run that was made, and what waits; nothing where there is no queue."""
    path = results / QUEUE
    if not path.exists():
        return
    # Runs that are under way on this machine are nobody's business but its own.
    asked = [entry for entry in read_queue(path) if not entry.recipes[0].startswith(BENCHMARK)]
    standings = [find_standing(entry, records, work=path / "none") for entry in asked]
    yield "## Asked beside the tables"
    yield (
        "Experiments that change one thing in a recipe to find out what explains a difference, in the order of"
        " `results/queue.toml` (`fedwidth reproduce --queue results/queue.toml`). They stand in no table."
    )
    found = [pair for standing in standings for pair in _rows(standing)]
    if found:
        more, measured = yardsticks.columns([asked for _, asked in found])
        rows = [[*row[:-1], *cells, row[-1]] for (row, _), cells in zip(found, measured, strict=True)]
        columns = ["job", "asks", "run", "last round", "best round", "seeds", *more, "answer"]
        yield markdown(columns, rows, left=3)
    left = [standing for standing in standings if len(standing.records) < len(standing.jobs)]
    if left:
        named = ", ".join(f"`{standing.entry.name}`" for standing in left)
        seconds = sum(standing.seconds_left for standing in left)
        yield f"{plural(len(left), 'job')} left, about {show_time(seconds)} on one H200: {named}."


def _rows(standing: Standing) -> Iterator[tuple[list[str], Asked]]:
    """Each row with the run it is about, whose yardsticks may stand in other rows."""
    entry, labels = standing.entry, list(dict.fromkeys(record.label for record in standing.records))
    if len(labels) > MAX_SHOWN:
        many = Asked(standing.jobs[0].settings, {})
        yield [f"`{entry.name}`", entry.asks, _recipes(entry), "", "", "", entry.answer], many
        return
    for label in labels:
        mine = [record for record in standing.records if record.label == label]
        accuracies = {record.seed: 100 * record.final_accuracy for record in mine}
        row = [
            f"`{entry.name}`",
            entry.asks,
            label,
            over_seeds([100 * record.final_accuracy for record in mine]),
            over_seeds([100 * record.best_accuracy for record in mine]),
            ", ".join(str(record.seed) for record in mine),
            entry.answer,
        ]
        yield row, Asked(build(Settings, mine[0].settings), accuracies)


def _recipes(entry: Entry) -> str:
    names: Sequence[str] = [f"`{name}`" for name in entry.recipes]
    return f"above, {' and '.join(names)}"
