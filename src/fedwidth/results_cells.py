"""Published numbers beside our runs of them, and whether the methods come in the paper's order.

Cell    a published number and our runs of it
Pair    two cells that differ in the method alone, and what our seeds say of their order
Column  the pairs of one setting: same split, same devices
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from statistics import mean, variance

from fedwidth.config import identity, read_settings
from fedwidth.recipe import Paper, Variant
from fedwidth.results import Record, key_of
from fedwidth.settings import MethodSettings

HOLDS, REVERSED, CLOSE, ONE_SEED = "as published", "the other way round", "not separable", "one seed"
OUTCOMES = (HOLDS, REVERSED, CLOSE, ONE_SEED)

Recorded = Mapping[str, Sequence[Record]]
"""Runs by experiment (`results.by_experiment`)."""


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

    @cached_property
    def key(self) -> str:
        """The name of its experiment: the same in every table that asks for it."""
        return key_of(asdict(self.run.settings))

    @property
    def final(self) -> list[float]:
        """Accuracy after the last round, in percent, by seed."""
        return [100 * record.final_accuracy for record in self.records]

    @property
    def best(self) -> list[float]:
        """Accuracy of the best round, likewise."""
        return [100 * record.best_accuracy for record in self.records]

    @property
    def values(self) -> list[float]:
        """What answers to the published number, by seed."""
        return self.best if self.paper.best else self.final

    @property
    def ours(self) -> float | None:
        """Its mean over seeds."""
        return mean(self.values) if self.records else None

    @property
    def difference(self) -> float | None:
        """Ours less the published number."""
        return None if self.ours is None or self.paper.number is None else self.ours - self.paper.number

    @property
    def reached(self) -> bool:
        """Whether ours is at least the published number, less its spread where one is given."""
        return self.difference is not None and self.difference >= -(self.paper.spread or 0)


@dataclass(frozen=True)
class Pair:
    """Two runs of one setting, the one with the higher published number first."""

    better: Cell
    worse: Cell
    names: tuple[str, str]
    """What tells the two apart: of their labels, the part that differs."""

    @property
    def gap(self) -> float:
        """By how much the first is above the second here."""
        return (self.better.ours or 0) - (self.worse.ours or 0)

    @property
    def outcome(self) -> str:
        """What our seeds say: means closer than the standard error of their difference are not told apart."""
        ours = self.better.values, self.worse.values
        if min(map(len, ours)) < 2:
            return ONE_SEED
        error = math.sqrt(sum(variance(values) / len(values) for values in ours))
        return CLOSE if abs(self.gap) <= error else HOLDS if self.gap > 0 else REVERSED


@dataclass(frozen=True)
class Column:
    """Pairs that may be compared."""

    name: str
    """What the labels of its runs share, '' for a table that is one column."""
    pairs: tuple[Pair, ...]

    @property
    def counts(self) -> Counter[str]:
        """How many pairs came out how."""
        return Counter(pair.outcome for pair in self.pairs)

    @property
    def reversed(self) -> dict[str, list[str]]:
        """Who is above whom here, clear of the spread, against the paper."""
        found: dict[str, list[str]] = {}
        for pair in self.pairs:
            if pair.outcome == REVERSED:
                found.setdefault(pair.names[1], []).append(pair.names[0])
        return found


def find_cells(table: str, recorded: Recorded, stopped: Recorded) -> list[Cell]:
    """The runs of a recipe with what is recorded of them."""
    cells = []
    for run in read_settings(table).runs:
        key = key_of(asdict(run.settings))
        done = tuple(recorded.get(key, ()))
        seeds = [record.seed for record in done]
        parts = (record for record in stopped.get(key, ()) if record.seed not in seeds)
        cells.append(Cell(run, done, tuple(parts)))
    return cells


def find_columns(cells: Sequence[Cell]) -> list[Column]:
    """Every pair that was run, with different published numbers, that differs in the method alone; recipes that are no
    grid are one column."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        alike = replace(cell.run.settings, method=MethodSettings())
        groups.setdefault(identity(alike) if "/" in cell.run.label else "", []).append(cell)
    columns = []
    for group in groups.values():
        name, names = _name([cell.run.label for cell in group])
        known = [(c, n) for c, n in zip(group, names, strict=True) if c.records and c.paper.number is not None]
        known.sort(key=lambda one: -(one[0].paper.number or 0))
        pairs = tuple(
            Pair(better, worse, (first, second))
            for place, (better, first) in enumerate(known)
            for worse, second in known[place + 1 :]
            if better.paper.number != worse.paper.number
        )
        if pairs:
            columns.append(Column(name, pairs))
    return columns


def count_outcomes(columns: Iterable[Column]) -> Counter[str]:
    """How many pairs of all columns came out how."""
    return sum((column.counts for column in columns), Counter[str]())


def _name(labels: Sequence[str]) -> tuple[str, list[str]]:
    """What labels share, and what is left of each: a/x/1 and a/y/1 are x and y of a/1."""
    parts = [label.split("/") for label in labels]
    if len(parts) == 1 or len({len(part) for part in parts}) > 1:
        return "", list(labels)
    shared = [len(set(column)) == 1 for column in zip(*parts, strict=True)]
    name = "/".join(word for word, same in zip(parts[0], shared, strict=True) if same)
    return name, ["/".join(w for w, same in zip(part, shared, strict=True) if not same) for part in parts]
