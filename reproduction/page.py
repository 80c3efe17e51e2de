"""docs/results.md, generated: finished runs beside the published numbers, and what remains to be run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedwidth.analysis.wording import over_seeds, with_spread
from fedwidth.config.read import recipe_names
from fedwidth.reproduce.records import UNFINISHED, Record, by_experiment, read_all
from fedwidth.reproduce.started import read_started
from reproduction.cells import Cell, find_cells, read_table
from reproduction.exact import METHODS, SHARES, WIDEST, agrees, cost_rows, coverage
from reproduction.figures import figure_texts
from reproduction.markdown import make_table, percent, published
from reproduction.queue import queue_texts
from reproduction.remaining import SMALL, Forecast, count_remaining, remaining_texts, unrun_texts
from reproduction.started import started_texts
from reproduction.summary import order_texts, summarise
from reproduction.yardsticks import EXPLAINED, Measured, Yardsticks

VERDICT, REMARKS = "verdict.md", "remarks.md"
"""Written by hand, beside the records: what holds up and what does not, and details by table."""
REPORTED = {
    "fedrolex": "The paper does not say whether its accuracies are those of the last or of the best round;"
    " differences are those of the last.",
    "fedbrb": "The paper does not say whether its accuracies are those of the last or of the best round;"
    " differences are those of the last.",
    "thesis": "The thesis reports the best round; so do the differences.",
}
HOW = """\
```console
$ fedwidth reproduce fedrolex/table3-cifar10-high --data DIR --seeds 1,2,3 --max-minutes 60 --set device=cuda
$ make results
```

`reproduce` runs what is not recorded yet, goes on where it was interrupted, and appends a line to `results/` for each
finished run: all its settings, every evaluation, seconds, hardware, engine, commit and versions. With `--start 3` it
makes the first run of each recipe (or those of `--only`) for three rounds instead, to see that it runs, and only notes
this in `results/started.json`. `results` (or `make results`) writes this page from those lines. A cell counts as run
whatever device, precision and interval between evaluations it was run with; all else must be the recipe's setting
([recipes](recipes.md) says where each comes from). No setting was tuned on the test set, but for the batch size the
thesis does not state (remarks), and for FedBRB's weight: 0, 0.02 and 0.2 had been looked at before 0.2 was taken.
"Best" is the best of the evaluated rounds, chosen on the test set: with few evaluations it is lower than it would be
with many."""


def write_page(results: Path) -> str:
    """The whole page."""
    records = read_all(results)
    stopped = read_all(results / UNFINISHED)
    tables = find_tables(records, stopped)
    begun = {name: cells for name, cells in tables.items() if any(c.records or c.unfinished for c in cells)}
    parts = ["# Results", "What the published tables come to when they are run with fedwidth."]
    started = read_started(results)
    forecast = Forecast(records, started)
    parts += _written("## In short", results / VERDICT)
    parts += ["## In numbers", *summarise(tables, begun, count_remaining(tables, forecast, 1))]
    parts += _written("## Remarks", results / REMARKS)
    parts += ["## How to repeat it", HOW, "## Exact", *_exact(results)]
    if begun:
        parts.append("## Trained")
    yardsticks = Yardsticks(records)
    if begun:
        parts.append(EXPLAINED)
    for name, cells in begun.items():
        parts += _table(name, cells, forecast, yardsticks)
    parts += queue_texts(results, records, yardsticks)
    parts += ["## Figures", *figure_texts(tables)]
    parts += ["## What remains", *remaining_texts(tables, forecast)]
    parts += ["## Started", *started_texts(tables, started)]
    parts += unrun_texts(tables)
    return "\n\n".join(parts) + "\n"


def _written(title: str, text: Path) -> list[str]:
    """A section that somebody wrote, if there is one."""
    return [title, text.read_text(encoding="utf-8").strip()] if text.exists() else []


def find_tables(records: Sequence[Record], stopped: Sequence[Record] = ()) -> dict[str, list[Cell]]:
    """The cells of every recipe that answers to a paper."""
    done, parts = by_experiment(records), by_experiment(stopped)
    names = [name for name in recipe_names() if read_table(name).paper.table]
    return {name: find_cells(name, done, parts) for name in names}


def _exact(results: Path) -> Iterator[str]:
    yield "FedRolex Table 7: PreResNet18, rounding as published (`fedwidth cost preresnet18 --rounding ceil`)."
    rows = [
        [what, whose, printed, f"{ours:.7g}", "yes" if agrees(printed, ours) else "no"]
        for what, whose, printed, ours in cost_rows()
    ]
    yield make_table(["per client", "clients", "paper", "ours", "equal"], rows, left=2)
    yield "The paper's averages are means of rounded numbers, hence their last digits."
    found = coverage(results)
    yield (
        f"Share of PreResNet18's convolution weights that are trained at least once in {found['rounds']} rounds, every"
        " client having the capacity of the column (`fedwidth coverage preresnet18 --method M --capacity C`), and in"
        f" brackets that of its {WIDEST} tensors, of which FedBRB's Fig. 3d shows one at 1/4:"
    )
    columns = [str(share) for share in SHARES]
    rows = [
        [name, *(f"{percent(found['convolutions'][name][c])} ({percent(found[WIDEST][name][c])})" for c in columns)]
        for name in METHODS
    ]
    yield make_table(["method, one client a round", *columns], rows)
    yield (
        "FedRolex covers units evenly, but input and output windows roll in lock-step: at 1/4 a weight between units i"
        " and j of 512 is trained if they are less than 128 apart around the circle, 255/512 of all. This is FedBRB's"
        " criticism, and it is right."
    )


def _table(name: str, cells: Sequence[Cell], forecast: Forecast, yardsticks: Yardsticks) -> Iterator[str]:
    yield f"### {read_table(name).title}"
    yield f"Recipe `{name}`. {REPORTED[name.split('/')[0]]}"
    whole = len(cells) <= SMALL
    local = any(cell.paper.local is not None for cell in cells)
    asked = [Measured(cell.run.settings, cell.by_seed, best=cell.paper.best) for cell in cells]
    more, measured = yardsticks.columns(asked)
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
        yield f"Run on {'; '.join(_made(mine))}; {minutes:.0f} minutes in all."


def _made(records: Sequence[Record]) -> list[str]:
    """Hardware and software of the runs, and the changes they were started with."""
    ways: dict[str, set[str]] = {}
    for record in records:
        where = f"{record.hardware}, {record.precision}, torch {record.torch}, fedwidth {record.version}"
        changes = " ".join(f"--set {text}" for text in record.changes if not text.startswith("checkpoint_"))
        ways.setdefault(where, set()).add(f"`{changes}`" if changes else "as the recipe is")
    return [f"{where} ({' or '.join(sorted(how))})" for where, how in sorted(ways.items())]


def _reached(record: Record) -> str:
    return f"not finished: {100 * record.final_accuracy:.2f} at round {record.evaluations[-1][0]} of {record.rounds}"


def _expected(name: str, cell: Cell, forecast: Forecast) -> str:
    expected = forecast.expect(name, cell)
    return "" if expected is None else f" (about {expected})"
