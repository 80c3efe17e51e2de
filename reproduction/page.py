"""docs/results.md as a whole: the answer on one screen, then what it rests on, section by section."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedwidth.config.read import recipe_names
from fedwidth.reproduce.records import UNFINISHED, Record, by_experiment, read_all
from fedwidth.reproduce.started import read_started
from reproduction.adapters import adapter_texts
from reproduction.all_methods import all_methods_texts
from reproduction.cells import Cell, find_cells, read_table
from reproduction.claims import claim_table
from reproduction.exact import exact_texts
from reproduction.figures import figure_texts
from reproduction.order import HOW_JUDGED
from reproduction.queue import queue_texts
from reproduction.remaining import Forecast, count_remaining, remaining_texts, unrun_texts
from reproduction.started import started_texts
from reproduction.summary import table_by_table, total_text
from reproduction.tables import table_texts
from reproduction.worth import worth_texts
from reproduction.yardsticks import EXPLAINED, Yardsticks

ANSWER, VERDICT, REMARKS = "answer.md", "verdict.md", "remarks.md"
"""Written by hand, beside the records: the answer in a few lines, what holds up and what does not, details by table."""
QUESTION = "**Do the published tables hold up when they are run again with fedwidth?**"
HOW_TO_READ = (
    "± is the standard deviation over seeds. Leads are in points, seed by seed, with the 95 % interval of their mean"
    " (of the thesis: over columns); *above* and *below* are more than a point, or the published spread, from the"
    " published number. The last five rows are [gains](#what-the-methods-gain), to which nothing is published: *above*"
    " and *below* are decided there. [How it was judged](#how-it-was-judged)."
)
CONTENTS = """\
On this page: [what holds up and what does not](#what-holds-up-and-what-does-not), in words; [what the
methods gain](#what-the-methods-gain) over what the same devices reach without one; [table by
table](#table-by-table), in counts; [remarks](#remarks) on single tables; [what needs no training](#exact); [every
table](#trained) beside our runs; [all methods](#all-methods); [adapters](#adapters); [questions asked beside the
tables](#asked-beside-the-tables); [figures](#figures); [how it was judged](#how-it-was-judged) and [how to repeat
it](#how-to-repeat-it); [what remains](#what-remains) to be run."""
HOW = """\
```console
$ fedwidth reproduce fedrolex/table3-cifar10-high --data DIR --seeds 1,2,3 --max-minutes 60 --set device=cuda
$ make results
```

`reproduce` runs what is not recorded yet, goes on where it was interrupted, and appends a line to `results/` for
each finished run: all its settings, every evaluation, seconds, hardware, engine, commit and versions
({without_commit:,} early records of {records:,} lack engine and commit). With `--start 3` it makes the first run of
each recipe (or those of `--only`) for three rounds instead, to see that it runs, and only notes this in
`results/started.json`. `make results` writes this page from those lines. A cell counts as run whatever device,
precision and interval between evaluations it was run with; all else must be the recipe's setting
([recipes](recipes.md) says where each comes from). No setting was tuned on the test set, but for the batch size the
thesis does not state (remarks), and for FedBRB's weight: 0, 0.02 and 0.2 had been looked at before 0.2 was taken.
"Best" is the best of the evaluated rounds, chosen on the test set: with few evaluations it is lower than it would
be with many."""


def write_page(results: Path) -> str:
    """The page as Markdown, from the records and texts in this folder."""
    records, started = read_all(results), read_started(results)
    tables = find_tables(records, read_all(results / UNFINISHED))
    begun = {name: cells for name, cells in tables.items() if any(c.records or c.unfinished for c in cells)}
    forecast, yardsticks = Forecast(records, started), Yardsticks(records)
    parts = ["# Results", " ".join([QUESTION, *_written(results / ANSWER)])]
    parts += [claim_table(tables, results, yardsticks), HOW_TO_READ]
    parts += [total_text(tables, count_remaining(tables, forecast, 1)), CONTENTS]
    parts += _section("## What holds up and what does not", _written(results / VERDICT))
    parts += _section("## What the methods gain", list(worth_texts(begun, yardsticks)))
    parts += _section("## Table by table", list(table_by_table(begun)))
    parts += _section("## Remarks", _written(results / REMARKS))
    parts += ["## Exact", *exact_texts(results)]
    trained = [text for name, cells in begun.items() for text in table_texts(name, cells, forecast, yardsticks)]
    parts += _section("## Trained", [EXPLAINED, *trained] if begun else [])
    parts += all_methods_texts(records, yardsticks)
    parts += adapter_texts(results)
    parts += queue_texts(results, records, yardsticks)
    parts += ["## Figures", *figure_texts(tables)]
    parts += ["## How it was judged", HOW_JUDGED, "## How to repeat it"]
    parts += [HOW.format(without_commit=sum(not record.commit for record in records), records=len(records))]
    parts += ["## What remains", *remaining_texts(tables, forecast)]
    parts += ["## Started", *started_texts(tables, started)]
    parts += unrun_texts(tables)
    return "\n\n".join(parts) + "\n"


def _written(text: Path) -> list[str]:
    """A text that somebody wrote, if there is one."""
    return [text.read_text(encoding="utf-8").strip()] if text.exists() else []


def _section(title: str, texts: Sequence[str]) -> list[str]:
    """The title and what is below it; nothing where nothing is."""
    return [title, *texts] if texts else []


def find_tables(records: Sequence[Record], stopped: Sequence[Record] = ()) -> dict[str, list[Cell]]:
    """The cells of every recipe that answers to a paper."""
    done, unfinished = by_experiment(records), by_experiment(stopped)
    names = [name for name in recipe_names() if read_table(name).paper.table]
    return {name: find_cells(name, done, unfinished) for name in names}
