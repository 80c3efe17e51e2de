"""Whether the methods of a table come in the paper's order.

Methods of one table share the split, the clients of each round and their capacities, so they are compared seed by seed:
what all runs of a seed have in common drops out of the difference.

Pair     two cells that differ in the method alone, and what our seeds say of their order
Column   the pairs of one setting: same split, same devices
Overall  the same two methods in all columns of a table
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean

from fedwidth.analysis.difference import ABOVE, BELOW, EQUAL, ONE_SEED, OPEN, Difference, compare, correct
from fedwidth.config.influence import identity
from fedwidth.reproduce.records import Record
from fedwidth.settings import MethodSettings
from reproduction.cells import Cell

HOLDS, REVERSED, CLOSE, FEW_SEEDS = "as published", "the other way round", OPEN, "one seed"
OUTCOMES = (HOLDS, REVERSED, EQUAL, CLOSE, FEW_SEEDS)

LAST_EVALUATIONS = 10
"""How many evaluations at the end of a run are averaged: less noisy than the last one alone."""


@dataclass(frozen=True)
class Pair:
    """Two runs of one setting, the one with the higher published number first."""

    better: Cell
    worse: Cell
    names: tuple[str, str]
    """The parts of the two labels that differ."""

    @property
    def published(self) -> float:
        """By how many points the first is above the second in the paper."""
        return (self.better.paper.number or 0) - (self.worse.paper.number or 0)

    @cached_property
    def differences(self) -> Difference:
        """By how much the first is above the second here, seed by seed; of their means where they share no seed."""
        found = compare(self.better.by_seed, self.worse.by_seed)
        return found or Difference(((self.better.ours or 0) - (self.worse.ours or 0),))

    @property
    def late(self) -> Difference | None:
        """The difference over the last evaluations of both, seed by seed; None where they share too few, or no seed."""
        others = {record.seed: record for record in self.worse.records}
        found = [_late(one, others[one.seed]) for one in self.better.records if one.seed in others]
        known = tuple(value for value in found if value is not None)
        return Difference(known) if known else None

    @cached_property
    def outcome(self) -> str:
        """What our seeds say of the published order."""
        return outcome_of(self.differences)


def outcome_of(difference: Difference) -> str:
    """What a difference says of the published order, which has the first above the second."""
    return {ABOVE: HOLDS, BELOW: REVERSED, ONE_SEED: FEW_SEEDS}.get(difference.verdict, difference.verdict)


@dataclass(frozen=True)
class Column:
    """The pairs of one setting, which may be compared."""

    name: str
    """What the labels of its runs share, '' for a table that is one column."""
    pairs: tuple[Pair, ...]

    @property
    def counts(self) -> Counter[str]:
        """How many of its pairs came out how."""
        return Counter(pair.outcome for pair in self.pairs)

    @property
    def reversed(self) -> dict[str, list[str]]:
        """For each method that is decided to be above others against the paper, the names of those others."""
        found: dict[str, list[str]] = {}
        for pair in self.pairs:
            if pair.outcome == REVERSED:
                found.setdefault(pair.names[1], []).append(pair.names[0])
        return found


@dataclass(frozen=True)
class Overall:
    """Two methods in all columns that have both, the one the paper has higher on average first."""

    names: tuple[str, str]
    published: float
    ours: Difference
    """The mean difference over seeds, column by column."""


def find_columns(cells: Sequence[Cell]) -> list[Column]:
    """All pairs of cells that were run, differ in the method alone, and have different published numbers, by setting.

    A recipe that is no grid is one column.
    """
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
            for rank, (better, first) in enumerate(known)
            for worse, second in known[rank + 1 :]
            if better.paper.number != worse.paper.number
        )
        if pairs:
            columns.append(Column(name, pairs))
    return columns


def count_outcomes(columns: Iterable[Column]) -> Counter[str]:
    """How many pairs of all columns came out how."""
    return sum((column.counts for column in columns), Counter[str]())


def count_corrected(columns: Iterable[Column]) -> int:
    """How many pairs of all columns are still decided when they are taken as one family (Holm)."""
    return sum(each.is_decided for each in correct([pair.differences for column in columns for pair in column.pairs]))


def find_overall(columns: Iterable[Column]) -> list[Overall]:
    """Pairs of methods that two columns or more have, each with two seeds or more, the largest difference first."""
    found: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for column in columns:
        for pair in column.pairs:
            if pair.outcome != FEW_SEEDS:
                names = tuple(sorted(pair.names))
                sign = 1 if names == pair.names else -1
                found.setdefault(names, []).append((sign * pair.published, sign * pair.differences.mean))
    rows = []
    for (first, second), gaps in found.items():
        if len(gaps) > 1:
            published = mean(gap for gap, _ in gaps)
            sign = 1 if published >= 0 else -1
            names = (first, second) if sign > 0 else (second, first)
            rows.append(Overall(names, abs(published), Difference(tuple(sign * ours for _, ours in gaps))))
    return sorted(rows, key=lambda row: -abs(row.ours.mean))


def _late(one: Record, other: Record) -> float | None:
    """The mean difference of two runs over the last evaluations they share; None where they share too few."""
    here, there = ({row[0]: row[1] for row in record.evaluations} for record in (one, other))
    rounds = [round for round in here if round in there][-LAST_EVALUATIONS:]
    if len(rounds) < LAST_EVALUATIONS:
        return None
    return 100 * mean((here[round] or 0) - (there[round] or 0) for round in rounds)


def _name(labels: Sequence[str]) -> tuple[str, list[str]]:
    """What labels share, and what is left of each: a/x/1 and a/y/1 are x and y of a/1."""
    parts = [label.split("/") for label in labels]
    if len(parts) == 1 or len({len(part) for part in parts}) > 1:
        return "", list(labels)
    shared = [len(set(column)) == 1 for column in zip(*parts, strict=True)]
    name = "/".join(word for word, same in zip(parts[0], shared, strict=True) if same)
    return name, ["/".join(w for w, same in zip(part, shared, strict=True) if not same) for part in parts]
