"""Published numbers beside our runs of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import mean

from fedwidth.analysis.difference import MARGIN
from fedwidth.config.read import read_settings
from fedwidth.config.recipe import Paper, Variant
from fedwidth.reproduce.records import Record, key_of

AGREES, ABOVE, BELOW = "agree", "above", "below"
AGREEMENTS = (AGREES, ABOVE, BELOW)
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
    def by_seed(self) -> dict[int, float]:
        """The same, with the seeds."""
        return dict(zip((record.seed for record in self.records), self.values, strict=True))

    @property
    def ours(self) -> float | None:
        """Its mean over seeds."""
        return mean(self.values) if self.records else None

    @property
    def difference(self) -> float | None:
        """Ours less the published number."""
        return None if self.ours is None or self.paper.number is None else self.ours - self.paper.number

    @property
    def agreement(self) -> str:
        """Whether ours agrees with the published number or is above or below it; '' where there is nothing to compare.

        They agree within the margin, or within the published spread where that is larger.
        Above counts as much as below: either way something is different from the paper.
        """
        if self.difference is None:
            return ""
        if abs(self.difference) <= max(self.paper.spread or 0, MARGIN):
            return AGREES
        return ABOVE if self.difference > 0 else BELOW

    @property
    def trained(self) -> frozenset[str]:
        """Names of the runs that were trained for it: others may answer to more cells than this one."""
        return frozenset(name_trained(record) for record in self.records)


def name_trained(record: Record) -> str:
    """The run that was trained: another one where the two did the same in every round."""
    return record.same_as or f"{record.recipe} {record.label}, seed {record.seed}"


def count_once(cells: Iterable[Cell]) -> list[Cell]:
    """The cells that were run, without those whose runs stand for an earlier one already: a paper prints some numbers
    several times, and at full width every method is FedAvg."""
    return list({cell.trained: cell for cell in reversed([cell for cell in cells if cell.records])}.values())[::-1]


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
