"""The row of a method of one's own: what its trials chose, and its gain beside those of the benchmark's methods.

`python -m reproduction.benchmark.mine mine` reads the records that `fedwidth reproduce … --results mine` has made, in
the place of a method of the recipes ([how](../../docs/benchmark/protocol.md)). A record that differs from its recipe in
more than the method and how it is trained is refused: its number could not be compared.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import fedwidth
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.reproduce.records import Record, read_all
from reproduction.benchmark.asked import as_asked, differences
from reproduction.benchmark.page import SETS, method_titles
from reproduction.benchmark.standings import Standings
from reproduction.benchmark.tables import gain_table
from reproduction.benchmark.tuning import tuning_table

OWN = ("method.name", "method.options", "local.name", "local.options", "training.optimiser", "training.lr")
"""The settings in which a row may differ from the one whose place it takes."""


def show_rows(mine: Sequence[Record], others: Sequence[Record]) -> Iterator[str]:
    """The tables of every data set that there are records of: trials with the best in bold, then all gains."""
    for record in mine:
        if found := differences(record, but=OWN):
            raise OptionError(
                f"{record.recipe}, {record.label}, seed {record.seed} cannot be compared: it differs from the recipe in"
                f" {', '.join(found)}; a row may differ in {', '.join(OWN)}"
            )
    titles, own = method_titles(), list[Record]()
    for record in mine:
        title = _title(record)
        titles[title] = title
        own.append(replace(record, label=f"{title}/{record.label.partition('/')[2]}"))
    for data in SETS:
        trials: dict[str, dict[str, Record | None]] = {}
        for record in own:
            row, _, column = record.label.partition("/")
            if record.recipe == f"benchmark/{data}-tuning":
                trials.setdefault(row, {})[column] = record
        if trials:
            yield f"{data}, trials: accuracy on validation samples in percent"
            yield tuning_table(trials, titles)
        if any(record.recipe == f"benchmark/{data}" for record in own):
            yield f"{data}, gains: points over the best yardstick, means of the last five evaluations, 95 % intervals"
            yield gain_table(Standings.of(data, [*as_asked(others), *own]), titles)


def _title(record: Record) -> str:
    """What a row is called: as its method, which is no row of the benchmark's."""
    choice, local = (record.settings[section]["name"] for section in ("method", "local"))
    return f"{fedwidth.method(choice, local=local or None).title} (mine)"


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
