"""The row of a method of one's own: what its trials chose, and its gain beside those of the benchmark's methods.

`python -m reproduction.benchmark.mine mine` reads the records that `fedwidth reproduce … --results mine` has made, in
the place of a method of the recipes ([how](../../docs/benchmark/protocol.md)). A record that differs from its recipe in
more than the method and how it is trained is refused: its number could not be compared. Variants of a method have rows
of their own, and yardsticks that are recorded there, as the recipes have them, stay yardsticks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import fedwidth
from fedwidth.config.read import read_settings
from fedwidth.config.schema import shown
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.reproduce.records import Record, read_all
from reproduction.benchmark.asked import as_asked, differences, differing
from reproduction.benchmark.page import SETS, YARDSTICK_TITLES, method_titles, with_sizes
from reproduction.benchmark.standings import Standings
from reproduction.benchmark.tables import gain_table
from reproduction.benchmark.tuning import Trials, tuning_table

OWN = ("method.name", "method.options", "local.name", "local.options", "training.optimiser", "training.lr")
"""The settings in which a row may differ from the one whose place it takes."""


def show_rows(mine: Sequence[Record], others: Sequence[Record]) -> Iterator[str]:
    """The tables of every data set that there are records of: trials with the best in bold, then all gains."""
    for record in mine:
        yardstick = _is_yardstick(record)
        if found := differences(record, but=() if yardstick else OWN):
            allowed = "a yardstick may differ in nothing" if yardstick else f"a row may differ in {', '.join(OWN)}"
            raise OptionError(
                f"{record.recipe}, {record.label}, seed {record.seed} cannot be compared: it differs from the recipe in"
                f" {', '.join(found)}; {allowed}"
            )
    titles, own = with_sizes(method_titles()), list[Record]()
    rows: dict[str, str] = {}  # titles may hold what labels must not, such as a stroke
    for record in mine:
        if not _is_yardstick(record):
            row = rows.setdefault(_title(record), f"mine-{len(rows) + 1}")
            record = replace(record, label=f"{row}/{record.label.partition('/')[2]}")
        own.append(record)
    titles |= {row: title for title, row in rows.items()}
    for data in SETS:
        reported, tuning = f"benchmark/{data}", f"benchmark/{data}-tuning"
        measured = (reported, f"{reported}-yardsticks")
        here = [record for record in own if record.recipe in (*measured, tuning)]
        _check_places(here, titles)
        if trials := _trials(tuning, here):
            yield f"{data}, trials: accuracy on validation samples in percent"
            yield tuning_table(trials, titles)
        if any(record.recipe in measured for record in here):
            yield f"{data}, gains: points over the best yardstick, means of the last five evaluations, 95 % intervals"
            yield gain_table(Standings.of(data, [*as_asked(others), *here]), titles)


def _is_yardstick(record: Record) -> bool:
    """Whether a record is of a row that methods are compared with, in whose place no method can stand."""
    return record.label.partition("/")[0] in YARDSTICK_TITLES


def _check_places(records: Sequence[Record], titles: Mapping[str, str]) -> None:
    """Refuse records of two experiments in one place of a table, where one of them would be lost."""
    taken: dict[tuple[str, ...], Record] = {}
    for record in records:
        trial = record.recipe.endswith("-tuning")  # of which there is one for all seeds
        there = taken.setdefault((record.recipe, record.label, "" if trial else f"{record.seed}"), record)
        found = differing(record.settings, there.settings)
        if found := [*found, *(["seed"] if record.seed != there.seed else [])]:
            row, _, column = record.label.partition("/")
            raise OptionError(
                f"{record.recipe}, {titles[row]}, {column}, seed {record.seed}: there are two records, which differ in"
                f" {', '.join(found)}; keep each in a folder of its own"
            )


def _trials(recipe: str, records: Sequence[Record]) -> Trials:
    """The trials that were recorded, by row, with all columns that the recipe has."""
    columns = [run.label.partition("/")[2] for run in read_settings(recipe).runs]
    trials: Trials = {}
    for record in records:
        if record.recipe == recipe:
            row, _, column = record.label.partition("/")
            trials.setdefault(row, dict.fromkeys(columns))[column] = record
    return trials


def _title(record: Record) -> str:
    """What a row is called: as its method, which is no row of the benchmark's, with the options that were changed."""
    choice, local = (record.settings[section] for section in ("method", "local"))
    find = partial(fedwidth.method, choice["name"], local=local["name"] or None)
    own, chosen = find().values, find(**choice["options"], **local["options"])
    changed = [f"{name}={shown(value)}" for name, value in chosen.values.items() if value != own[name]]
    return f"{chosen.title} ({', '.join(['mine', *changed])})"


def main(*arguments: str) -> None:
    """Print the tables of the records in a folder, beside those of results/ or of another one."""
    if not 1 <= len(arguments) <= 2:
        raise OptionError("name the folder of your records, and (if it is not results) that of the benchmark's")
    mine, results = (Path(folder) for folder in (*arguments, "results")[:2])
    for folder in (mine, results):
        if not folder.is_dir():
            raise OptionError(f"there is no folder {folder}")
    texts = list(show_rows(read_all(mine), read_all(results)))
    if not texts:
        raise OptionError(f"{mine} has no record of the benchmark's recipes")
    print("\n\n".join(texts))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except FedwidthError as error:
        sys.exit(f"error: {error}")
