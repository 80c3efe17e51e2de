"""How each method and yardstick likes to be trained: its trials, and the one that is best on validation samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedwidth.config.read import read_settings
from fedwidth.reproduce.records import Record
from reproduction.markdown import make_table

NOT_RUN = "–"
Trials = dict[str, dict[str, Record | None]]
"""The record of each trial, by row (a method or a yardstick) and column (an optimiser and its learning rate)."""


def find_trials(recipe: str, records: Iterable[Record]) -> Trials:
    """The trials that a recipe asks for, in its order; None for those that have not been run."""
    done = {record.label: record for record in records if record.recipe == recipe}
    found: Trials = {}
    for run in read_settings(recipe).runs:
        row, _, column = run.label.partition("/")
        found.setdefault(row, {})[column] = done.get(run.label)
    return found


def find_best(trials: Trials) -> dict[str, str]:
    """The column of the best trial of each row that has been tried in full."""
    found = {}
    for row, of_row in trials.items():
        known = {column: record.final_accuracy for column, record in of_row.items() if record is not None}
        if len(known) == len(of_row):
            found[row] = max(known, key=known.__getitem__)
    return found


def training_of(record: Record) -> Mapping[str, Any]:
    """How the clients of a trial were trained."""
    return {name: record.settings["training"][name] for name in ("optimiser", "lr")}


def tuning_table(trials: Trials, titles: Mapping[str, str]) -> str:
    """Validation accuracies in percent, the best of each row in bold; rows with the best first."""
    columns = list(next(iter(trials.values())))
    best = find_best(trials)
    known = {row: [record.final_accuracy for record in of_row.values() if record] for row, of_row in trials.items()}
    rows = []
    for row in sorted(trials, key=lambda row: -max(known[row], default=0.0)):
        cells = []
        for column, record in trials[row].items():
            text = NOT_RUN if record is None else f"{100 * record.final_accuracy:.1f}"
            cells.append(f"**{text}**" if best.get(row) == column else text)
        rows.append([titles[row], *cells])
    return make_table(["", *(_words(column) for column in columns)], rows)


WIDTHS = {"half": "1/2", "quarter": "1/4", "eighth": "1/8"}
"""The widths of a server's model by the label that the recipe's columns have."""
ONE_WIDTH = "one-width"
"""The row in which only devices train that can hold the server's model."""


def width_table(trials: Trials, tuned: Trials, titles: Mapping[str, str]) -> str:
    """Validation accuracies in percent by the width of the server's model, the best width of each row in bold.

    `trials` have models between the whole one and the narrowest; what these two reached is the best of `tuned`, where
    only devices that can hold them train in the rows *exclude* and *smallest for all*.
    """
    best = find_best(tuned)

    def reached(row: str) -> Record | None:
        return tuned[row][best[row]] if row in best else None

    rows = []
    for row, of_row in trials.items():
        alone = row == ONE_WIDTH
        there = [reached("exclude" if alone else row), *of_row.values(), reached("smallest") if alone else None]
        found = [None if record is None else record.final_accuracy for record in there]
        most = max((each for each in found if each is not None), default=None)
        texts = ["" if each is None else f"{100 * each:.1f}" for each in found]
        shown = [f"**{text}**" if text and each == most else text for text, each in zip(texts, found, strict=True)]
        rows.append([titles[row], *shown])
    columns = list(next(iter(trials.values())))
    return make_table(["server's width", "1", *(WIDTHS[column] for column in columns), "1/16"], rows)


def _words(column: str) -> str:
    """A column's label as people write it.

    >>> _words("adam-3e-4"), _words("sgd-0.3")
    ('Adam 3e-4', 'SGD 0.3')
    """
    name, _, rate = column.partition("-")
    return f"{ {'adam': 'Adam', 'sgd': 'SGD'}.get(name, name) } {rate}"
