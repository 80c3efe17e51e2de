"""docs/results.md, generated: finished runs beside the published numbers, and what remains to be run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev

from fedwidth.config import read_settings, recipe_names
from fedwidth.recipe import Paper
from fedwidth.results import UNFINISHED, Record, estimate_seconds, read_all
from fedwidth.results_cells import Cell, find_cells, judge
from fedwidth.results_clients import read_clients
from fedwidth.results_exact import METHODS, SHARES, WIDEST, agrees, cost_rows, coverage
from fedwidth.results_figures import figure_texts

REMARKS = "remarks.md"
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
$ fedwidth results
```

`reproduce` runs what is not recorded yet, goes on where it was interrupted, and appends a line to `results/` for each
finished run: all its settings, every evaluation, seconds, hardware and versions. `results` (or `make results`) writes
this page from those lines. A cell counts as run whatever device, precision and interval between evaluations it was run
with; all else must be the recipe's setting ([recipes](recipes.md) says where each comes from). No setting was tuned on
the test set. "Best" is the best of the evaluated rounds, chosen on the test set: with few evaluations it is lower than
it would be with many."""


def write_page(results: Path) -> str:
    """The whole page."""
    records = read_all(results)
    stopped = read_all(results / UNFINISHED)
    tables = find_tables(records, stopped)
    begun = {name: cells for name, cells in tables.items() if any(c.records or c.unfinished for c in cells)}
    parts = ["# Results", "What the published tables come to when they are run with fedwidth."]
    parts += ["## In short", "\n".join(_summary(tables, begun))]
    remarks = results / REMARKS
    if remarks.exists():
        parts.append(remarks.read_text(encoding="utf-8").strip())
    parts += ["## How to repeat it", HOW, "## Exact", *_exact(results)]
    if begun:
        parts.append("## Trained")
    for name, cells in begun.items():
        parts += _table(name, cells, records)
    parts += ["## Figures", *figure_texts(tables, read_clients(results))]
    parts += ["## What remains", *_remaining(tables, records)]
    return "\n\n".join(parts) + "\n"


def find_tables(records: Sequence[Record], stopped: Sequence[Record] = ()) -> dict[str, list[Cell]]:
    """The cells of every recipe that answers to a paper."""
    return {name: find_cells(name, records, stopped) for name in recipe_names() if name != "quickstart"}


def _summary(tables: dict[str, list[Cell]], begun: dict[str, list[Cell]]) -> Iterator[str]:
    published = [cell for cells in tables.values() for cell in cells if cell.paper.number is not None]
    run = [cell for cell in published if cell.records]
    finished = {(record.identity, record.seed) for cell in run for record in cell.records}
    yield (
        f"- {len(run)} of {len(published)} published accuracies have been run with at least one seed,"
        f" {sum(len(cell.records) > 2 for cell in run)} with three or more. They are {len(finished)} runs: papers print"
        " some numbers more than once."
    )
    if run:
        reached = sum((c.ours or 0) >= (c.paper.number or 0) - (c.paper.spread or 0) for c in run)
        yield f"- {reached} of these {len(run)} reach the published accuracy (less its spread, where one is given)."
    for name, cells in begun.items():
        done = [cell for cell in cells if cell.records]
        if not done:
            continue
        shown = ", ".join(f"{c.run.label} {_number(c.ours)} ({_published(c.paper)})" for c in done[:5])
        more = f", and {len(done) - 5} more" if len(done) > 5 else ""
        yield f"- `{name}`: ours (published): {shown}{more}; {judge(cells)}."
    rows = cost_rows()
    right = sum(agrees(printed, ours) for _, _, printed, ours in rows)
    yield f"- FedRolex Table 7 (cost): {right} of its {len(rows)} numbers agree (the averages in five digits)."


def _exact(results: Path) -> Iterator[str]:
    yield "FedRolex Table 7: PreResNet18, rounding as published (`fedwidth cost preresnet18 --rounding ceil`)."
    rows = [
        [what, whose, printed, f"{ours:.7g}", "yes" if agrees(printed, ours) else "no"]
        for what, whose, printed, ours in cost_rows()
    ]
    yield _markdown(["per client", "clients", "paper", "ours", "equal"], rows, left=2)
    yield "The paper's averages are means of rounded numbers, hence their last digits."
    found = coverage(results)
    yield (
        f"Share of PreResNet18's convolution weights that are trained at least once in {found['rounds']} rounds, every"
        " client having the capacity of the column (`fedwidth coverage preresnet18 --method M --capacity C`), and in"
        f" brackets that of its {WIDEST} tensors, of which FedBRB's Fig. 3d shows one at 1/4:"
    )
    columns = [str(share) for share in SHARES]
    rows = [
        [name, *(f"{_percent(found['convolutions'][name][c])} ({_percent(found[WIDEST][name][c])})" for c in columns)]
        for name in METHODS
    ]
    yield _markdown(["method, one client a round", *columns], rows)
    yield (
        "FedRolex covers units evenly, but input and output windows roll in lock-step: at 1/4 a weight between units i"
        " and j of 512 is trained if they are less than 128 apart around the circle, 255/512 of all. This is FedBRB's"
        " criticism, and it is right."
    )


def _table(name: str, cells: Sequence[Cell], records: Sequence[Record]) -> Iterator[str]:
    yield f"### {read_settings(name).title}"
    yield f"Recipe `{name}`. {REPORTED[name.split('/')[0]]}"
    whole = len(cells) <= 12
    local = any(cell.paper.local is not None for cell in cells)
    rows = []
    for cell in cells:
        row = [cell.run.label, _published(cell.paper)]
        if cell.records:
            seeds = ", ".join(str(record.seed) for record in cell.records)
            difference = "–" if cell.paper.number is None else f"{(cell.ours or 0) - cell.paper.number:+.2f}"
            row += [_spread(cell.final), _spread(cell.best), difference, seeds]
            owned = [100 * r.local_accuracy for r in cell.records if r.local_accuracy is not None]
            row += [_spread(owned) if owned else "–"]
        elif cell.unfinished:
            row += [_reached(cell.unfinished[-1]), "", "", "", ""]
        elif whole:
            row += [f"not run{_expected(cell, records)}", "", "", "", ""]
        else:
            continue
        if local:
            row.append("–" if cell.paper.local is None else _with_spread(cell.paper.local, cell.paper.local_spread))
        rows.append(row)
    columns = ["run", "paper", "ours, last round", "best round", "difference", "seeds", "clients' own data"]
    yield _markdown([*columns, *(["paper"] if local else [])], rows)
    left = sum(not cell.records for cell in cells)
    if left and not whole:
        yield f"{left} of its {len(cells)} runs are not run."
    mine = [record for cell in cells for record in cell.records]
    if mine:
        yield f"Order of methods: {judge(cells)}."
        minutes = sum(record.seconds for record in mine) / 60
        yield f"{'; '.join(sorted({_made(record) for record in mine}))}; {minutes:.0f} minutes in all."


def _made(record: Record) -> str:
    changes = " ".join(f"--set {text}" for text in record.changes if not text.startswith("checkpoint_every"))
    how = f" (`{changes}`)" if changes else ""
    return f"Run on {record.hardware}, {record.precision}, torch {record.torch}, fedwidth {record.version}{how}"


def _remaining(tables: dict[str, list[Cell]], records: Sequence[Record]) -> Iterator[str]:
    yield (
        "Runs that are not finished with any seed. Times are for one seed on the hardware of the runs above, from what"
        " a local step took in the runs most like them: a rough guide. Where no run with the same model is recorded,"
        " nothing is known."
    )
    rows = []
    for name, cells in tables.items():
        left = [cell for cell in cells if not cell.records]
        times = [estimate_seconds(cell.run.settings, records) for cell in left]
        known = [seconds for seconds in times if seconds is not None]
        hours = f"{sum(known) / 3600:.1f} h" if len(known) == len(left) else "not known"
        if left:
            rows.append([f"`{name}`", str(len(cells)), str(len(left)), hours])
    yield _markdown(["recipe", "runs", "not run", "time"], rows)


def _reached(record: Record) -> str:
    return f"not finished: {100 * record.final_accuracy:.2f} at round {record.evaluations[-1][0]} of {record.rounds}"


def _expected(cell: Cell, records: Sequence[Record]) -> str:
    seconds = estimate_seconds(cell.run.settings, records)
    return "" if seconds is None else f" (about {seconds / 60:.0f} min)"


def _published(paper: Paper) -> str:
    return "–" if paper.number is None else _with_spread(paper.number, paper.spread)


def _with_spread(number: float, spread: float | None) -> str:
    return f"{number:.2f}" if spread is None else f"{number:.2f} ± {spread:.2f}"


def _spread(values: Sequence[float]) -> str:
    return _with_spread(mean(values), stdev(values) if len(values) > 1 else None)


def _percent(share: float) -> str:
    """100 % only where nothing is missing."""
    return "100 %" if share == 1 else f"{min(100 * share, 99.9):.1f} %"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    lines = [columns, [*["---"] * left, *["---:"] * (len(columns) - left)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
