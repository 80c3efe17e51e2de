"""The top of docs/results.md: what the runs come to in a few lines, and how the order of methods is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

from fedwidth.results_cells import (
    CLOSE,
    HOLDS,
    ONE_SEED,
    OUTCOMES,
    REVERSED,
    Cell,
    Column,
    count_outcomes,
    find_columns,
)
from fedwidth.results_exact import agrees, cost_rows
from fedwidth.results_markdown import markdown, plural

HOW_JUDGED = (
    "A pair is two runs that differ in the method alone (same split, same devices) and whose published numbers differ;"
    " a table that is no grid is compared as a whole. A pair is judged only where both have two seeds or more, and only"
    " if their means differ by more than the standard error of the difference, √(s₁²/n₁ + s₂²/n₂) with the spreads s"
    " over n seeds that are printed below; else it is not separable. With three seeds this is a low bar: of pairs that"
    " are truly equal about 37 in 100 would pass it by chance, half of them the other way round."
)


def summarise(tables: Mapping[str, Sequence[Cell]], begun: Mapping[str, Sequence[Cell]], left: str) -> Iterator[str]:
    """Paragraphs: totals and what is `left` to run, then a line for each table."""
    published = [cell for cells in tables.values() for cell in cells if cell.paper.number is not None]
    run = [cell for cell in published if cell.records]
    finished = {(record.identity, record.seed) for cell in run for record in cell.records}
    lines = [
        f"- {len(run)} of {len(published)} cells with a published accuracy have been run with at least one seed,"
        f" {sum(len(cell.records) > 2 for cell in run)} with three or more. They are {len(finished)} runs: some numbers"
        " stand in more than one table."
    ]
    if run:
        reached = sum(cell.reached for cell in run)
        lines.append(f"- {reached} of these {len(run)} reach the published accuracy (less its spread, where given).")
    rows = cost_rows()
    right = sum(agrees(printed, ours) for _, _, printed, ours in rows)
    lines.append(f"- FedRolex Table 7 (cost): {right} of its {len(rows)} numbers agree (the averages in five digits).")
    lines.append(f"- To have one seed of every run, there remain {left} ([details](#what-remains)).")
    yield "\n".join(lines)
    done = {name: cells for name, cells in begun.items() if any(cell.records for cell in cells)}
    if done:
        columns = ["table", "cells run", "seeds", "mean absolute difference", "reach the published", "pairs", *OUTCOMES]
        yield markdown(columns, [_line(name, cells) for name, cells in done.items()])
        yield f"The last columns count pairs of methods. {HOW_JUDGED}"


def _line(name: str, cells: Sequence[Cell]) -> list[str]:
    run = [cell for cell in cells if cell.records]
    seeds = sorted({len(cell.records) for cell in run})
    gaps = [abs(cell.difference) for cell in run if cell.difference is not None]
    counts = count_outcomes(find_columns(cells))
    return [
        f"`{name}`",
        f"{len(run)} of {len(cells)}",
        str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}",
        f"{mean(gaps):.2f}" if gaps else "–",
        f"{sum(cell.reached for cell in run)} of {len(gaps)}" if gaps else "–",
        str(counts.total()),
        *(_share(counts, outcome) for outcome in OUTCOMES),
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
    said = [f"{counts[outcome]} {outcome}" for outcome in (HOLDS, REVERSED, CLOSE) if counts[outcome]]
    if counts[ONE_SEED]:
        right = sum(pair.gap > 0 for column in columns for pair in column.pairs if pair.outcome == ONE_SEED)
        said.append(f"{counts[ONE_SEED]} cannot be judged from one seed ({right} would be as published)")
    yield f"Order of methods, {plural(counts.total(), 'pair')}: {', '.join(said)}."
    if len(columns) == 1 and counts[REVERSED]:
        yield f"Against the paper: {_above(columns[0])}."
    elif counts[REVERSED]:
        shown = [outcome for outcome in OUTCOMES if counts[outcome]]
        rows = [[column.name, *(str(column.counts[one]) for one in shown), _above(column)] for column in columns]
        yield markdown(["column", *shown, "against the paper"], rows, last=1)


def _above(column: Column) -> str:
    return "; ".join(f"{first} above {', '.join(others)}" for first, others in column.reversed.items()) or "–"
