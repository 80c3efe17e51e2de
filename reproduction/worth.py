"""What methods for narrow devices gain in the papers' own settings: all recorded runs of their tables, table by table.

A gain is a run's accuracy less that of the best of its yardsticks: what the same devices reach without a method made
for them (reproduction/yardsticks.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedwidth.analysis.difference import ABOVE, BELOW, EQUAL, ONE_SEED, OPEN, Difference, correct
from fedwidth.analysis.wording import signed
from reproduction.cells import Cell, count_once
from reproduction.markdown import make_table
from reproduction.yardsticks import Measured, Yardsticks

VERDICTS = {ABOVE: "decided above", EQUAL: EQUAL, OPEN: OPEN, BELOW: "decided below"}
EXPLAINED = (
    "What the papers' tables do not ask. Gain: points of accuracy above the better of what the same devices reach"
    " without a method for them, of what was run: only those that hold the whole model train it, or all train a model"
    " that the weakest can hold (where all have one size, that is a model as wide as every device). Models of a width"
    " between, which [the benchmark](benchmark.md) found better, were not run here. Settings that answer to several"
    " numbers are counted once in a table, and judged so that all decisions of a table are right (Holm)."
)
OVER_COLUMNS = (
    "Method by method over all columns of a table, where its runs have several seeds. In brackets is the 95 % interval"
    " over columns, not corrected for several methods; columns share their seeds, so that other seeds may differ by"
    " more:"
)


@dataclass(frozen=True)
class Worth:
    """A run of a published table, and what it gains over the best of its yardsticks."""

    cell: Cell
    kind: str
    """Which yardstick is the best one."""
    gain: Difference
    at_most: bool
    """Whether a yardstick to beat was not run, so that the gain may be smaller."""


def find_worth(cells: Sequence[Cell], yardsticks: Yardsticks) -> list[Worth]:
    """The cells of a table that were run and whose yardsticks were, with their gains."""
    run = [cell for cell in cells if cell.records]
    measured = [Measured(cell.run.settings, cell.by_seed, best=cell.paper.best) for cell in run]
    gains = yardsticks.gains(measured)
    return [
        Worth(cell, gain.kind, gain.difference, at_most=yardsticks.lacks(row))
        for cell, row, gain in zip(run, measured, gains, strict=True)
        if gain
    ]


def worth_texts(tables: Mapping[str, Sequence[Cell]], yardsticks: Yardsticks) -> Iterator[str]:
    """A table with a line for each published table that has gains, and one with a line for each method of a grid."""
    once = {name: find_worth(count_once(cells), yardsticks) for name, cells in tables.items()}
    if not any(once.values()):
        return
    yield EXPLAINED
    columns = ["table", "settings", "best yardstick", "gains, lowest to highest", "mean above 0", *VERDICTS.values()]
    yield make_table(columns, [_line(name, worth) for name, worth in once.items() if worth])
    rows = [row for name, cells in tables.items() for row in _by_method(name, find_worth(cells, yardsticks))]
    if rows:
        yield OVER_COLUMNS
        yield make_table(["table", "method", "gain, mean over columns", "columns above 0"], rows, left=2)


def _line(name: str, worth: Sequence[Worth]) -> list[str]:
    means = sorted(each.gain.mean for each in worth)
    verdicts = [each.gain.verdict for each in worth]
    return [
        f"`{name}`",
        str(len(worth)),
        ", ".join(sorted({each.kind for each in worth})),
        ("at most " if any(each.at_most for each in worth) else "")
        + (signed(means[0]) if len(means) == 1 else f"{signed(means[0])} to {signed(means[-1])}"),
        f"{sum(mean > 0 for mean in means)} of {len(means)}",
        *("–" if set(verdicts) == {ONE_SEED} else str(verdicts.count(one)) for one in VERDICTS),
    ]


def _by_method(name: str, worth: Sequence[Worth]) -> Iterator[list[str]]:
    """A row for each method, the best first."""
    for method, gain in sorted(over_columns(worth).items(), key=lambda item: -item[1].mean):
        above = sum(value > 0 for value in gain.values)
        yield [f"`{name}`", method, str(gain), f"{above} of {len(gain.values)}"]


def over_columns(worth: Sequence[Worth]) -> dict[str, Difference]:
    """The gains of every method that has several seeds in two columns or more, column by column, as one family."""
    methods: dict[str, list[float]] = {}
    for each in worth:
        if each.gain.verdict != ONE_SEED:
            methods.setdefault(_method_name(each.cell), []).append(each.gain.mean)
    overall = {method: Difference(tuple(gains)) for method, gains in methods.items() if len(gains) > 1}
    return dict(zip(overall, correct(list(overall.values())), strict=True))


def _method_name(cell: Cell) -> str:
    """The part of a cell's label that names its method."""
    parts = cell.run.label.split("/")
    return next((part for part in parts if part.startswith(cell.run.settings.method.name)), cell.run.label)
