"""What each method reached in each mix of devices, and the yardsticks it has to beat there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import mean

from fedwidth.analysis.yardsticks import CAPPED, EXCLUDE, FULL, SMALLEST, Accuracies, Gain, find_gain
from fedwidth.reproduce.records import Record

LAST_EVALUATIONS = 5
"""How many evaluations at the end of a run are averaged."""
MIXES = {
    "five-sizes": "five sizes",
    "weak-classes": "weak devices hold classes of their own",
    "no-full-width": "no full width",
    "all-quarter": "all at 1/4",
}
"""The mixes of devices by the label that the recipes' columns have."""
CAP = "capped"
"""The column with the runs whose server model is as wide as the widest device of `no-full-width`."""
CAPS = {CAP: "no full width, a server's model of 1/2"}
"""That column as a mix of its own: a server's model of 1/2, and devices that hold all of it or less."""
YARDSTICKS = {
    "five-sizes": {EXCLUDE: "exclude/five-sizes", SMALLEST: "smallest", FULL: "full"},
    "weak-classes": {EXCLUDE: "exclude/weak-classes", SMALLEST: "smallest", FULL: "full"},
    "no-full-width": {SMALLEST: "smallest", FULL: "full"},
    "all-quarter": {SMALLEST: "quarter", FULL: "full"},
    CAP: {EXCLUDE: f"exclude/{CAP}", SMALLEST: "smallest", FULL: "full"},
}
"""The labels of the yardsticks' runs. Who trains the whole model needs none of the sizes, so mixes share them."""
ONLY_HALF, ONLY_QUARTER = "only-half", "only-quarter"
NO_METHODS = ("exclude", ONLY_HALF, ONLY_QUARTER)
"""How the labels of yardsticks begin that belong to one mix."""
ANY_WIDTH = {
    mix: YARDSTICKS[mix] | {row: f"{row}/{mix}" for row in (ONLY_HALF, ONLY_QUARTER)}
    for mix in ("five-sizes", "weak-classes")
}
ANY_WIDTH["no-full-width"] = YARDSTICKS["no-full-width"] | {
    ONLY_HALF: YARDSTICKS[CAP][EXCLUDE],
    ONLY_QUARTER: f"{ONLY_QUARTER}/no-full-width",
}
"""The same with server's models of 1/2 and of 1/4 that only devices train that can hold them: the best that a mix can
reach with one model of these widths and no method."""
NARROWER = {
    "five-sizes": {"1/2": "five-sizes-half", "1/4": "five-sizes-quarter"},
    "weak-classes": {"1/2": "weak-classes-half", "1/4": "weak-classes-quarter"},
    "no-full-width": {"1/2": CAP, "1/4": "no-full-width-quarter"},
}
"""The columns in which the devices of a mix train a server's model of these widths, narrower ones parts of it."""
NARROWER_TITLES = {
    column: f"{MIXES[mix]}, a server's model of {width}" for mix, of in NARROWER.items() for width, column in of.items()
}
ANY_WIDTH |= {column: ANY_WIDTH[mix] for mix, of in NARROWER.items() for column in of.values()}

Runs = dict[int, Record]
"""Runs of one experiment, by seed."""
Bars = Mapping[str, Mapping[str, str]]
Accuracy = Callable[[Record], float | None]
"""(run) -> what counts as its accuracy, in percent; None where that was not measured."""


def late_accuracy(record: Record) -> float:
    """The mean accuracy of the last evaluations, in percent."""
    return 100 * mean(float(row[1]) for row in record.evaluations[-LAST_EVALUATIONS:] if row[1] is not None)


def best_part(record: Record) -> tuple[str, float] | None:
    """The sub-model that does best on validation samples: its size, and its accuracy after the last round, a share.

    None where they have not seen the sub-models.
    """
    known = {size: value for size, value in (record.capacity_validation or {}).items() if value is not None}
    best = max(known, key=lambda size: (known[size], float(size)), default="")
    tested = (record.capacity_accuracy or {}).get(best)
    return None if tested is None else (best, tested)


def part_accuracy(record: Record) -> float | None:
    """The accuracy after the last round if the sub-model answers that validation samples like best, in percent."""
    found = best_part(record)
    return _answered(record, None if found is None else found[1])


def together_accuracy(record: Record) -> float | None:
    """The accuracy after the last round if one sub-model of each size answer together, in percent."""
    return _answered(record, record.together_accuracy)


def chosen_accuracy(record: Record) -> float | None:
    """The accuracy after the last round, in percent, if those sub-models answer together that validation samples
    choose."""
    return _answered(record, record.chosen_accuracy)


def _answered(record: Record, accuracy: float | None) -> float | None:
    """An accuracy of parts in percent; that of yardsticks is of the whole, which all who train them hold."""
    found = record.final_accuracy if record.recipe.endswith("-yardsticks") else accuracy
    return None if found is None else 100 * found


@dataclass(frozen=True)
class Standings:
    """All reported runs of one data set, by label and seed."""

    runs: dict[str, Runs]
    accuracy: Accuracy = late_accuracy
    """What counts as the accuracy of a run; None where it was not measured."""
    bars: Bars = field(default_factory=lambda: YARDSTICKS)
    """What has to be beaten in each mix: the labels of its yardsticks, by kind."""

    @classmethod
    def of(
        cls, name: str, records: Iterable[Record], accuracy: Accuracy = late_accuracy, bars: Bars = YARDSTICKS
    ) -> Standings:
        """The runs of the recipes `benchmark/NAME` and `benchmark/NAME-yardsticks` that have this accuracy."""
        found: dict[str, Runs] = {}
        for record in records:
            reported = record.recipe in (f"benchmark/{name}", f"benchmark/{name}-yardsticks")
            if reported and accuracy(record) is not None:
                found.setdefault(record.label, {})[record.seed] = record
        return cls({label: dict(sorted(runs.items())) for label, runs in found.items()}, accuracy, bars)

    def methods(self, mix: str) -> list[str]:
        """The methods that were run in a mix."""
        rows = [label.partition("/")[0] for label in self.runs if label.endswith(f"/{mix}")]
        return [row for row in rows if row not in NO_METHODS]

    def accuracies(self, label: str) -> Accuracies:
        """What a run reached, by seed."""
        found = {seed: self.accuracy(record) for seed, record in self.runs.get(label, {}).items()}
        return {seed: accuracy for seed, accuracy in found.items() if accuracy is not None}

    def yardsticks(self, method: str, mix: str) -> dict[str, Accuracies]:
        """What the yardsticks of a method reached, by kind; those that were not run are left out."""
        return {kind: found for kind, label in self._labels(method, mix).items() if (found := self.accuracies(label))}

    def lacks(self, method: str, mix: str) -> bool:
        """Whether a yardstick that the method has to beat was not run, so that its gain may be smaller."""
        return not {FULL, *self.yardsticks(method, mix)} >= self._labels(method, mix).keys()

    def gain(self, method: str, mix: str) -> Gain | None:
        """How much better a method is than the best of its yardsticks; None before one was run."""
        return find_gain(self.accuracies(f"{method}/{mix}"), self.yardsticks(method, mix))

    def _labels(self, method: str, mix: str) -> dict[str, str]:
        """The labels of a method's yardsticks, by kind."""
        return {**self.bars[mix], **({CAPPED: f"{method}/{CAP}"} if mix == "no-full-width" else {})}
