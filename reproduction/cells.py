"""Cells of published tables: a printed number beside our runs of the same experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from statistics import mean

from fedwidth.analysis.difference import MARGIN
from fedwidth.analysis.experiment_key import experiment_key
from fedwidth.config.read import read_settings
from fedwidth.config.recipe import Paper, Recipe, Variant
from fedwidth.reproduce.records import Record

AGREES, ABOVE, BELOW = "agree", "above", "below"
AGREEMENTS = (AGREES, ABOVE, BELOW)
Recorded = Mapping[str, Sequence[Record]]
"""Runs by the key of their experiment (`records.by_experiment`)."""


@dataclass(frozen=True)
class Cell:
    """A number that a paper prints, and our runs of the same experiment."""

    run: Variant
    records: tuple[Record, ...]
    unfinished: tuple[Record, ...] = ()
    """Runs with further seeds that were stopped before the end."""

    @property
    def paper(self) -> Paper:
        """What the paper prints for it."""
        return self.run.paper

    @cached_property
    def key(self) -> str:
        """The key of its experiment: the same in every table that asks for it."""
        return experiment_key(asdict(self.run.settings))

    @property
    def final(self) -> list[float]:
        """The accuracy after the last round in percent, seed by seed."""
        return [100 * record.final_accuracy for record in self.records]

    @property
    def best(self) -> list[float]:
        """The accuracy of the best round in percent, seed by seed."""
        return [100 * record.best_accuracy for record in self.records]

    @property
    def values(self) -> list[float]:
        """The accuracies that answer to the published number, seed by seed: of the last round, or of the best."""
        return self.best if self.paper.best else self.final

    @property
    def by_seed(self) -> dict[int, float]:
        """The accuracies that answer to the published number, by seed."""
        return dict(zip((record.seed for record in self.records), self.values, strict=True))

    @property
    def ours(self) -> float | None:
        """Our accuracy: the mean over seeds; None where nothing was run."""
        return mean(self.values) if self.records else None

    @property
    def difference(self) -> float | None:
        """Our accuracy less the published number; None where there is nothing to compare."""
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
        """The names of the runs that were trained for it, some of which may answer to further cells."""
        return frozenset(name_trained(record) for record in self.records)


def name_trained(record: Record) -> str:
    """The name of the run that was trained: another one's where the two did the same in every round."""
    return record.same_as or f"{record.recipe} {record.label}, seed {record.seed}"


def count_once(cells: Iterable[Cell]) -> list[Cell]:
    """The cells that were run, each set of runs once.

    A paper prints some numbers several times, and at full width every method is FedAvg: of cells that the same runs
    answer to, the first is kept.
    """
    return list({cell.trained: cell for cell in reversed([cell for cell in cells if cell.records])}.values())[::-1]


@cache
def read_table(name: str) -> Recipe:
    """The recipe of a published table, read once."""
    return read_settings(name)


@cache
def _keys(table: str) -> list[str]:
    return [experiment_key(asdict(run.settings)) for run in read_table(table).runs]


def find_cells(table: str, recorded: Recorded, stopped: Recorded) -> list[Cell]:
    """The cells of a recipe, with what is recorded of each."""
    cells = []
    for run, key in zip(read_table(table).runs, _keys(table), strict=True):
        done = tuple(recorded.get(key, ()))
        seeds = [record.seed for record in done]
        unfinished = (record for record in stopped.get(key, ()) if record.seed not in seeds)
        cells.append(Cell(run, done, tuple(unfinished)))
    return cells
