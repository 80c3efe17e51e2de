"""The runs of a published table: every row of it crossed with every column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedwidth.config.document import Document, overlay, tables_of, text_of
from fedwidth.errors import OptionError

ABSENT, UNPUBLISHED = "-", "?"
"""In the numbers of a grid: there is no such run; there is one, but no number was published."""


def cells_of(grid: Any) -> Iterator[Document]:
    """The runs of a published table, laid out as it was printed.

    `rows` and `columns` are lists of tables, each with a `label` and the settings it stands for; a row also has its
    `numbers`, one for each column (and `spreads`, and a `note`). A cell's label is row/column.
    """
    if not isinstance(grid, Mapping) or set(grid) - {"rows", "columns", "note"}:
        raise OptionError("[grid] must be a table of rows, columns and an optional note")
    rows, columns = tables_of(grid, "rows"), tables_of(grid, "columns")
    if not rows or not columns:
        raise OptionError("[grid] needs at least one row and one column")
    for row in rows:
        row = dict(row)
        numbers, spreads = (_numbers(row.pop(name, []), columns, name) for name in ("numbers", "spreads"))
        note = row.pop("note", grid.get("note", ""))
        for column, number, spread in zip(columns, numbers, spreads, strict=True):
            if number == ABSENT:
                continue
            found = {"number": number, "spread": spread, "note": note}
            labels = (text_of(row, "label", ""), text_of(column, "label", ""))
            paper = {name: value for name, value in found.items() if value not in (UNPUBLISHED, "")}
            yield {**overlay(row, column), "label": "/".join(filter(None, labels)), "paper": paper}


def _numbers(given: Any, columns: Sequence[Document], name: str) -> list[Any]:
    if not given:
        return [UNPUBLISHED] * len(columns)
    if not isinstance(given, list) or len(given) != len(columns):
        raise OptionError(f"the {name} of a row must be a list of {len(columns)}, one for each column")
    return given
