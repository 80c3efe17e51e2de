"""What the section of a table says of the order of its methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fedwidth.analysis.difference import EQUAL, correct
from fedwidth.analysis.wording import plural
from reproduction.cells import Cell
from reproduction.markdown import make_table
from reproduction.pairs import (
    FEW_SEEDS,
    LAST_EVALUATIONS,
    OUTCOMES,
    REVERSED,
    Column,
    count_corrected,
    count_outcomes,
    find_columns,
    find_overall,
    outcome_of,
)

HOW_JUDGED = (
    "A pair is two runs that differ in the method alone and whose published numbers differ; a table that is no grid is"
    " compared as a whole. Both share the split, the clients of each round and their capacities, so they are compared"
    " seed by seed: a pair is decided if the 95 % interval of its mean difference (Student's t: 4.30 standard errors"
    f" with three seeds) leaves zero out, and {EQUAL} points if two one-sided tests (5 % each) say so. Of pairs that"
    ' are truly equal five in 100 pass the first by chance; "Holm" counts what is decided where all pairs of a table'
    " are to be right in 95 of 100 cases. One seed decides nothing."
)


def order_texts(cells: Sequence[Cell]) -> Iterator[str]:
    """The paragraphs and tables: how many pairs came out how, which ones against the paper, and over all columns."""
    columns = find_columns(cells)
    if not columns:
        yield "Order of methods: nothing to compare yet."
        return
    counts = count_outcomes(columns)
    said = [f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome] and outcome != FEW_SEEDS]
    if counts[FEW_SEEDS]:
        alone = [pair for column in columns for pair in column.pairs if pair.outcome == FEW_SEEDS]
        right = sum(pair.differences.mean > 0 for pair in alone)
        said.append(f"{counts[FEW_SEEDS]} cannot be judged from one seed ({right} would be as published)")
    tested = counts.total() - counts[FEW_SEEDS]
    holm = f" {count_corrected(columns)} of {tested} are decided if all are to be right (Holm)." if tested > 1 else ""
    yield f"Order of methods, {plural(counts.total(), 'pair')}: {', '.join(said)}.{holm}"
    if len(columns) == 1:
        yield from _pair_texts(columns[0])
    elif counts[REVERSED]:
        shown = [outcome for outcome in OUTCOMES if counts[outcome]]
        rows = [[column.name, *(str(column.counts[one]) for one in shown), _against(column)] for column in columns]
        yield make_table(["column", *shown, "against the paper"], rows, last=1)
    yield from _overall_texts(columns)


def _pair_texts(column: Column) -> Iterator[str]:
    """The pairs of a table that is one column, seed by seed."""
    pairs = [pair for pair in column.pairs if len(pair.differences.values) > 1]
    if not pairs:
        return
    rows = [
        [
            f"{pair.names[0]} − {pair.names[1]}",
            f"{pair.published:+.2f}",
            ", ".join(f"{value:+.2f}" for value in pair.differences.values),
            str(pair.differences),
            str(pair.late or "–"),
            pair.outcome,
        ]
        for pair in pairs
    ]
    columns = ["difference", "paper", "ours, by seed", "mean", f"over the last {LAST_EVALUATIONS} evaluations", "order"]
    yield make_table(columns, rows, last=1)
    yield "In brackets: the 95 % interval of the mean over seeds."


def _overall_texts(columns: Sequence[Column]) -> Iterator[str]:
    """The same two methods over all columns of a grid; the comparisons of a table are one family."""
    found = find_overall(columns)
    corrected = correct([row.ours for row in found])
    overall = [replace(row, ours=each) for row, each in zip(found, corrected, strict=True)]
    rows = [
        [
            f"{row.names[0]} − {row.names[1]}",
            f"{row.published:+.2f}",
            str(row.ours),
            f"{sum(gap > 0 for gap in row.ours.values)} of {len(row.ours.values)}",
            outcome_of(row.ours),
        ]
        for row in overall
    ]
    if rows:
        yield (
            "Over all columns, each the mean of its differences seed by seed; in brackets the 95 % interval over"
            f" columns, the verdict by Holm over the {plural(len(rows), 'comparison')}:"
        )
        yield make_table(["difference", "paper", "ours", "columns above", "order"], rows, last=1)


def _against(column: Column) -> str:
    """Which methods of a column are above which others against the paper."""
    return "; ".join(f"{first} above {', '.join(others)}" for first, others in column.reversed.items()) or "–"
