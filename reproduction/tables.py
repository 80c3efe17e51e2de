"""The section of one published table: its cells beside our runs of them, their yardsticks, and the order of methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedwidth.analysis.wording import over_seeds, with_spread
from fedwidth.reproduce.records import Record
from reproduction.cells import Cell, read_table
from reproduction.markdown import make_table, published
from reproduction.order import order_texts
from reproduction.remaining import MAX_ROWS_WHOLE, Forecast
from reproduction.yardsticks import Measured, Yardsticks

REPORTED = {
    "fedrolex": "The paper does not say whether its accuracies are those of the last or of the best round;"
    " differences are those of the last.",
    "fedbrb": "The paper does not say whether its accuracies are those of the last or of the best round;"
    " differences are those of the last.",
    "thesis": "The thesis reports the best round; so do the differences.",
    "niid-bench": "The board does not say whether its accuracies are those of the last or of the best round;"
    " differences are those of the last.",
}


def table_texts(name: str, cells: Sequence[Cell], forecast: Forecast, yardsticks: Yardsticks) -> Iterator[str]:
    """The title, the table itself, what is not run, the order of methods, and what the runs were made with."""
    yield f"### {read_table(name).title}"
    yield f"Recipe `{name}`. {REPORTED[name.split('/')[0]]}"
    whole = len(cells) <= MAX_ROWS_WHOLE
    local = any(cell.paper.local is not None for cell in cells)
    runs = [Measured(cell.run.settings, cell.by_seed, best=cell.paper.best) for cell in cells]
    more, measured = yardsticks.columns(runs)
    rows = []
    for cell, measures in zip(cells, measured, strict=True):
        row = [cell.run.label, published(cell.paper)]
        if cell.records:
            seeds = ", ".join(str(record.seed) for record in cell.records)
            difference = "–" if cell.difference is None else f"{cell.difference:+.2f}"
            row += [over_seeds(cell.final), over_seeds(cell.best), difference, seeds]
            owned = [100 * r.local_accuracy for r in cell.records if r.local_accuracy is not None]
            row += [over_seeds(owned) if owned else "–"]
        elif cell.unfinished:
            row += [_reached(cell.unfinished[-1]), "", "", "", ""]
        elif whole:
            row += [f"not run{_expected(name, cell, forecast)}", "", "", "", ""]
        else:
            continue
        if local:
            row.append("–" if cell.paper.local is None else with_spread(cell.paper.local, cell.paper.local_spread))
        rows.append([*row, *measures])
    columns = ["run", "paper", "ours, last round", "best round", "difference", "seeds", "clients' own data"]
    yield make_table([*columns, *(["paper"] if local else []), *more], rows)
    left = sum(not cell.records and not cell.unfinished for cell in cells)
    if left and not whole:
        yield f"{left} of its {len(cells)} runs are not run ([which](#not-run))."
    mine = [record for cell in cells for record in cell.records]
    if mine:
        yield from order_texts(cells)
        minutes = sum(record.seconds for record in mine) / 60
        yield f"Run on {'; '.join(_made_with(mine))}; {minutes:.0f} minutes in all."


def _made_with(records: Sequence[Record]) -> list[str]:
    """Hardware and software of the runs, and the changes they were started with."""
    ways: dict[str, set[str]] = {}
    for record in records:
        where = f"{record.hardware}, {record.precision}, torch {record.torch}, fedwidth {record.version}"
        changes = " ".join(f"--set {text}" for text in record.changes if not text.startswith("checkpoint_"))
        ways.setdefault(where, set()).add(f"`{changes}`" if changes else "as the recipe is")
    return [f"{where} ({' or '.join(sorted(how))})" for where, how in sorted(ways.items())]


def _reached(record: Record) -> str:
    """How far a run got that was stopped."""
    return f"not finished: {100 * record.final_accuracy:.2f} at round {record.evaluations[-1][0]} of {record.rounds}"


def _expected(name: str, cell: Cell, forecast: Forecast) -> str:
    expected = forecast.expect(name, cell)
    return "" if expected is None else f" (about {expected})"
