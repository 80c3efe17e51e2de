"""Published numbers beside our runs of them, and whether the methods come in the paper's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

from fedwidth.config import identity, read_settings
from fedwidth.recipe import Paper, Variant
from fedwidth.results import Record, find_records
from fedwidth.settings import MethodSettings


@dataclass(frozen=True)
class Cell:
    """A published number and our runs of it."""

    run: Variant
    records: tuple[Record, ...]
    unfinished: tuple[Record, ...] = ()
    """How far runs of other seeds got."""

    @property
    def paper(self) -> Paper:
        """What was published."""
        return self.run.paper

    @property
    def final(self) -> list[float]:
        """Accuracy after the last round, in percent, by seed."""
        return [100 * record.final_accuracy for record in self.records]

    @property
    def best(self) -> list[float]:
        """Accuracy of the best round, likewise."""
        return [100 * record.best_accuracy for record in self.records]

    @property
    def ours(self) -> float | None:
        """What answers to the published number."""
        values = self.best if self.paper.best else self.final
        return mean(values) if values else None


@dataclass(frozen=True)
class Verdict:
    """Whether runs that a paper compares come in its order."""

    pairs: int
    """Pairs with different published numbers of which both were run."""
    reversed: tuple[tuple[str, str], ...]
    """(better in the paper, better here)"""
    close: int
    """Of the reversed: those closer in the paper than its spreads."""

    def __str__(self) -> str:
        if not self.pairs:
            return "nothing to compare yet"
        if not self.reversed:
            return f"the paper's order holds in all {self.pairs} pairs" if self.pairs > 1 else "the paper's order holds"
        shown = "; ".join(f"{here} is above {there} here" for there, here in self.reversed[:6])
        more = f" and {len(self.reversed) - 6} more" if len(self.reversed) > 6 else ""
        close = f" ({self.close} of them closer in the paper than its own spreads)" if self.close else ""
        holds = self.pairs - len(self.reversed)
        return f"the paper's order holds in {holds} of {self.pairs} pairs; not in: {shown}{more}{close}"


def find_cells(table: str, records: Sequence[Record], stopped: Sequence[Record] = ()) -> list[Cell]:
    """The runs of a recipe with what is recorded of them."""
    cells = []
    for run in read_settings(table).runs:
        done = tuple(find_records(records, run.settings))
        seeds = [record.seed for record in done]
        parts = (record for record in find_records(stopped, run.settings) if record.seed not in seeds)
        cells.append(Cell(run, done, tuple(parts)))
    return cells


def judge(cells: Sequence[Cell]) -> Verdict:
    """Compare the order of every pair that differs in the method alone (recipes without a grid: every pair)."""
    pairs, turned, close = 0, [], 0
    for group in _groups(cells):
        known = [c for c in group if c.ours is not None and c.paper.number is not None]
        known.sort(key=lambda c: -(c.paper.number or 0))
        for place, better in enumerate(known):
            for worse in known[place + 1 :]:
                gap = (better.paper.number or 0) - (worse.paper.number or 0)
                if gap == 0:
                    continue
                pairs += 1
                if (better.ours or 0) <= (worse.ours or 0):
                    turned.append((better.run.label, worse.run.label))
                    close += gap < (better.paper.spread or 0) + (worse.paper.spread or 0)
    return Verdict(pairs, tuple(turned), close)


def _groups(cells: Sequence[Cell]) -> list[list[Cell]]:
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        alike = replace(cell.run.settings, method=MethodSettings())
        found.setdefault(identity(alike) if "/" in cell.run.label else "", []).append(cell)
    return list(found.values())
