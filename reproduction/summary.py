"""What all runs come to: how many cells were run and agree, in a few lines and table by table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

from fedwidth.analysis.difference import MARGIN
from fedwidth.analysis.wording import plural
from reproduction.cells import ABOVE, AGREEMENTS, AGREES, BELOW, Cell, count_once, name_trained
from reproduction.markdown import make_table
from reproduction.pairs import FEW_SEEDS, OUTCOMES, count_corrected, count_outcomes, find_columns


def total_text(tables: Mapping[str, Sequence[Cell]], left: str) -> str:
    """A list: how many published accuracies were run, how many agree, and what is `left` to run."""
    published: dict[tuple[object, ...], list[Cell]] = {}
    for cell in (cell for cells in tables.values() for cell in cells if cell.paper.number is not None):
        published.setdefault((cell.paper.table, cell.run.label, cell.paper.number), []).append(cell)
    answered = [found for cells in published.values() if (found := [cell for cell in cells if cell.records])]
    run = [cell for cells in answered for cell in cells]
    trained = {name_trained(record) for cell in run for record in cell.records}
    several = sum(len({cell.key for cell in cells}) > 1 for cells in answered)
    lines = [
        f"- {len(answered)} of {len(published)} published accuracies have been run with at least one seed,"
        f" {sum(any(len(cell.records) > 2 for cell in cells) for cells in answered)} with three or more, {several} of"
        f" them in more than one reading of the paper. For them {plural(len(trained), 'run')} were trained: some answer"
        " to more than one number."
    ]
    if run:
        once = count_once(run)
        counts = Counter(cell.agreement for cell in once)
        lines.append(
            f"- With every run counted once, and every reading by itself, they are {plural(len(once), 'cell')}:"
            f" {counts[AGREES]} agree with the published accuracy to within {MARGIN:g} point (or its spread, where that"
            f" is larger), {counts[ABOVE]} are above it and {counts[BELOW]} below."
        )
    lines.append(f"- To have one seed of every run, there remain {left} ([details](#what-remains)).")
    return "\n".join(lines)


def table_by_table(begun: Mapping[str, Sequence[Cell]]) -> Iterator[str]:
    """A table with a line for each published table of which a run is finished, and how to read it."""
    done = {name: cells for name, cells in begun.items() if any(cell.records for cell in cells)}
    if done:
        columns = ["table", "cells run", "seeds", "mean absolute difference", *AGREEMENTS, "pairs", *OUTCOMES, "Holm"]
        yield make_table(columns, [_line(name, cells) for name, cells in done.items()])
        yield (
            "Differences, and how many agree, are of the runs of a table counted once. The last columns count pairs of"
            " methods ([how they are judged](#how-it-was-judged))."
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
