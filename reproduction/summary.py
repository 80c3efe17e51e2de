"""The top of docs/results.md: what the runs come to in a few lines, and how the order of methods is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import mean

from fedwidth.analysis.difference import EQUAL, MARGIN, correct
from fedwidth.analysis.wording import plural
from reproduction.cells import ABOVE, AGREEMENTS, AGREES, BELOW, Cell, count_once, name_trained
from reproduction.exact import agrees, cost_rows
from reproduction.markdown import make_table
from reproduction.pairs import (
    FEW_SEEDS,
    LAST,
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


def summarise(tables: Mapping[str, Sequence[Cell]], begun: Mapping[str, Sequence[Cell]], left: str) -> Iterator[str]:
    """Paragraphs: totals and what is `left` to run, then a line for each table."""
    numbered = [cell for cells in tables.values() for cell in cells if cell.paper.number is not None]
    # Two readings of one published table share the cells in which they do not differ.
    published = list({(cell.key, cell.paper.table): cell for cell in numbered}.values())
    run = [cell for cell in published if cell.records]
    trained = {name_trained(record) for cell in run for record in cell.records}
    lines = [
        f"- {len(run)} of {len(published)} cells with a published accuracy have been run with at least one seed,"
        f" {sum(len(cell.records) > 2 for cell in run)} with three or more. For them {plural(len(trained), 'run')}"
        " were trained: some answer to more than one cell."
    ]
    if run:
        once = count_once(run)
        counts = Counter(cell.agreement for cell in once)
        lines.append(
            f"- With every run counted once they are {plural(len(once), 'cell')}: {counts[AGREES]} agree with the"
            f" published accuracy to within {MARGIN:g} point (or its spread, where that is larger), {counts[ABOVE]} are"
            f" above it and {counts[BELOW]} below."
        )
    rows = cost_rows()
    right = sum(agrees(printed, ours) for _, _, printed, ours in rows)
    lines.append(f"- FedRolex Table 7 (cost): {right} of its {len(rows)} numbers agree (the averages in five digits).")
    lines.append(f"- To have one seed of every run, there remain {left} ([details](#what-remains)).")
    yield "\n".join(lines)
    done = {name: cells for name, cells in begun.items() if any(cell.records for cell in cells)}
    if done:
        columns = ["table", "cells run", "seeds", "mean absolute difference", *AGREEMENTS, "pairs", *OUTCOMES, "Holm"]
        yield make_table(columns, [_line(name, cells) for name, cells in done.items()])
        yield (
            "Differences, and how many agree, are of the runs of a table counted once. The last columns count pairs of"
            f" methods. {HOW_JUDGED}"
        )


def _line(name: str, cells: Sequence[Cell]) -> list[str]:
    run = [cell for cell in cells if cell.records]
    seeds = sorted({len(cell.records) for cell in run})
    once = [cell for cell in count_once(run) if cell.difference is not None]
    agreements = Counter(cell.agreement for cell in once)
    columns = find_columns(cells)
    counts = count_outcomes(columns)
    return [
        f"`{name}`",
        f"{len(run)} of {len(cells)}",
        str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}",
        f"{mean(abs(cell.difference or 0) for cell in once):.2f}" if once else "–",
        *(str(agreements[one]) if once else "–" for one in AGREEMENTS),
        str(counts.total()),
        *(_share(counts, outcome) for outcome in OUTCOMES),
        str(count_corrected(columns)) if counts.total() > counts[FEW_SEEDS] else "–",
    ]


def _share(counts: Counter[str], outcome: str) -> str:
    count, pairs = counts[outcome], counts.total()
    return f"{count} ({100 * count / pairs:.0f} %)" if count else "–"


def order_texts(cells: Sequence[Cell]) -> Iterator[str]:
    """What the section of a table says of the order of its methods."""
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
        rows = [[column.name, *(str(column.counts[one]) for one in shown), _above(column)] for column in columns]
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
    columns = ["difference", "paper", "ours, by seed", "mean", f"over the last {LAST} evaluations", "order"]
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


def _above(column: Column) -> str:
    return "; ".join(f"{first} above {', '.join(others)}" for first, others in column.reversed.items()) or "–"
