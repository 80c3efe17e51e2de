"""The first screen of docs/results.md: what the papers say, what our runs say, side by side in a dozen rows.

Which claims are shown is chosen here; all their numbers come from the recipes and the recorded runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedwidth.analysis.difference import Difference, correct
from fedwidth.analysis.wording import over_seeds, signed
from reproduction.cells import ABOVE, AGREES, BELOW, Cell
from reproduction.exact import WIDEST, agrees, cost_rows, coverage
from reproduction.markdown import make_table, percent, published
from reproduction.pairs import find_columns, find_overall, outcome_of
from reproduction.worth import find_worth, over_columns
from reproduction.yardsticks import Yardsticks

Tables = Mapping[str, Sequence[Cell]]
COLUMNS = ["what is published", "published", "here", "seeds", "so"]
NOT_RUN = ["not run", "–", "open"]
VERDICTS = {AGREES: "agrees", ABOVE: "above", BELOW: "below"}


@dataclass(frozen=True)
class Accuracy:
    """A published accuracy: the cell of a recipe with this label."""

    says: str
    recipe: str
    label: str

    def row(self, tables: Tables) -> list[str]:
        """The claim, the number that is published, ours, how many seeds we have, and whether the two agree."""
        (cell,) = (cell for cell in tables[self.recipe] if cell.run.label == self.label)
        if not cell.records:
            return [self.says, published(cell.paper), *NOT_RUN]
        ours, seeds = over_seeds(cell.values), str(len(cell.records))
        return [self.says, published(cell.paper), ours, seeds, VERDICTS[cell.agreement]]


@dataclass(frozen=True)
class Lead:
    """A published lead of one method over another in the same setting: two cells of a recipe."""

    says: str
    recipe: str
    labels: tuple[str, str]

    def row(self, tables: Tables) -> list[str]:
        """The claim, the lead that is published, ours with its interval, and what our seeds decide."""
        numbers = {cell.run.label: cell.paper.number or 0 for cell in tables[self.recipe]}
        printed = numbers[self.labels[0]] - numbers[self.labels[1]]
        pairs = [pair for column in find_columns(tables[self.recipe]) for pair in column.pairs]
        for pair in pairs:
            if (pair.better.run.label, pair.worse.run.label) == self.labels:
                return [self.says, signed(printed), *_found(pair.differences, printed, len(pair.differences.values))]
        return [self.says, signed(printed), *NOT_RUN]


@dataclass(frozen=True)
class Overall:
    """A published lead of one method over another in the mean over all columns of a table."""

    says: str
    recipe: str
    names: tuple[str, str]

    def row(self, tables: Tables) -> list[str]:
        """The claim, the lead that is published, ours with its interval over columns, and what they decide (Holm)."""
        rows = find_overall(find_columns(tables[self.recipe]))
        for row, ours in zip(rows, correct([row.ours for row in rows]), strict=True):
            if row.names == self.names:
                seeds = min(len(cell.records) for cell in tables[self.recipe] if cell.records)
                return [self.says, signed(row.published), *_found(ours, row.published, seeds)]
        return [self.says, "–", *NOT_RUN]


@dataclass(frozen=True)
class Gain:
    """What a method gains over the best of its yardsticks, in one run or over a table; no paper prints it."""

    says: str
    recipe: str
    label: str
    """The label of a cell; or of a grid's method, over all columns."""

    def row(self, tables: Tables, yardsticks: Yardsticks) -> list[str]:
        """The claim, a dash, the gain with its interval, how many seeds it has, and which way it is decided."""
        worth = find_worth(tables[self.recipe], yardsticks)
        found = {each.cell.run.label: each.gain for each in worth} | over_columns(worth)
        if self.label not in found:
            return [self.says, "–", *NOT_RUN]
        cells = [each.cell for each in worth if self.label in each.cell.run.label]
        over = "" if any(cell.run.label == self.label for cell in cells) else " over columns"
        seeds = min(len(cell.records) for cell in cells)
        return [self.says, "–", str(found[self.label]), str(seeds), f"{found[self.label].verdict}{over}"]


def _found(ours: Difference, printed: float, seeds: int) -> list[str]:
    """Our lead with its interval, the seeds, and what they decide about zero and about the published lead."""
    low, high = ours.interval or (-math.inf, math.inf)
    excluded = "" if low <= printed <= high else f"; {signed(printed)} is excluded"
    return [str(ours), str(seeds), f"{outcome_of(ours)}{excluded}"]


HIGH, LOW = "fedrolex/table3-cifar10-high", "fedrolex/table3-cifar10-low"
BRB = "fedbrb/table3-cifar10-dynamic"
CLAIMS = (
    Accuracy("FedRolex on CIFAR-10, 2 labels per client", HIGH, "fedrolex"),
    Accuracy("the same, 5 labels per client", LOW, "fedrolex"),
    Accuracy(
        "the same, 2 labels, trained as the paper states and not as its code does", f"{HIGH}-as-stated", "fedrolex"
    ),
    Lead("FedRolex over HeteroFL, 2 labels", HIGH, ("fedrolex", "heterofl")),
    Lead("the same, 5 labels", LOW, ("fedrolex", "heterofl")),
    Lead("FedRolex over Federated Dropout, 2 labels", HIGH, ("fedrolex", "feddropout")),
    Lead(
        "FedBRB over FedRolex, all devices at 1/16, 2 labels",
        BRB,
        ("a0-e1/non-iid-2/fedbrb", "a0-e1/non-iid-2/fedrolex"),
    ),
    Lead("the same, all labels", BRB, ("a0-e1/iid/fedbrb", "a0-e1/iid/fedrolex")),
    Accuracy("thesis: FedAvg on MNIST, 10 classes per client", "thesis/table3-1", "10-classes/fedavg/1.00"),
    Overall("thesis: FedCover over FedStack, all columns of Table 3.1", "thesis/table3-1", ("fedcover", "fedstack")),
    Overall("thesis: FedCover over Federated Dropout, likewise", "thesis/table3-1", ("fedcover", "feddropout")),
)
GAINS = (
    Gain("FedRolex over only the clients that drew the whole model, 2 labels, last round", HIGH, "fedrolex"),
    Gain("the same, 5 labels", LOW, "fedrolex"),
    Gain("FedBRB, all devices at 1/16, over one model of 1/16, 2 labels", BRB, "a0-e1/non-iid-2/fedbrb"),
    Gain("FedRolex in the same setting", BRB, "a0-e1/non-iid-2/fedrolex"),
    Gain("thesis: FedCover over one model that all can hold, all columns of Table 3.1", "thesis/table3-1", "fedcover"),
)
"""What the papers' tables do not ask: whether a method gains over what the same devices reach without one."""


def claim_table(tables: Tables, results: Path, yardsticks: Yardsticks) -> str:
    """The table of claims, below them the two that are settled without training, and what no paper prints."""
    costs = cost_rows()
    right = sum(agrees(printed, ours) for _, _, printed, ours in costs)
    reached = coverage(results)[WIDEST]["fedrolex"]["1/4"]
    exact = [
        ["FedRolex's costs (Table 7)", f"{len(costs)} numbers", f"{right} agree", "–", "exact"],
        ["FedBRB's criticism: FedRolex at 1/4 trains half of a wide layer", "half", percent(reached), "–", "exact"],
    ]
    gains = [gain.row(tables, yardsticks) for gain in GAINS]
    return make_table(COLUMNS, [*(claim.row(tables) for claim in CLAIMS), *exact, *gains], last=1)
