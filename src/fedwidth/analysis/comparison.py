"""The runs of one table, compared: with a leading one, and with their yardsticks.

What leads is the main run of a recipe; of a sweep it is the best, by validation where there are validation samples. The
differences to it are one family, and so are the gains (`fedwidth.analysis.difference`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean, stdev

from fedwidth.analysis.difference import ABOVE, BELOW, EQUAL, ONE_SEED, OPEN, Difference, compare, correct, count
from fedwidth.analysis.yardsticks import KINDS, Accuracies, Gain, find_gain, is_yardstick, key_of, yardsticks
from fedwidth.settings import Settings

TEST, VALIDATION = "test", "validation"
MAX_SENTENCES = 8
"""Differences that are told one by one; of more, how many came out how."""

WORDS = {
    ABOVE: ABOVE,
    BELOW: BELOW,
    EQUAL: f"{EQUAL} with",
    OPEN: "undecided against",
    ONE_SEED: "with one seed beside",
}


@dataclass(frozen=True)
class Row:
    """One experiment, with its accuracies in percent by seed."""

    title: str
    settings: Settings | None
    """None where they cannot be read: then it has no yardsticks."""
    test: Accuracies
    validation: Accuracies


@dataclass(frozen=True)
class Comparison:
    """Rows that may be compared, and which of them leads."""

    rows: tuple[Row, ...]
    chosen: bool = False
    """Whether the best leads, not the first."""

    @cached_property
    def measure(self) -> str:
        """What is compared: test accuracies, unless a row has none."""
        return TEST if all(row.test for row in self.rows) or not self.has_validation else VALIDATION

    @cached_property
    def has_validation(self) -> bool:
        """Whether every row was measured on validation samples."""
        return all(row.validation for row in self.rows)

    @property
    def chosen_by(self) -> str:
        """What the best is chosen by."""
        return VALIDATION if self.has_validation else TEST

    @cached_property
    def lead(self) -> int:
        """The place of the row that leads."""
        found = {place: self.accuracies(place, self.chosen_by) for place in self.places}
        candidates = [place for place in self.places if found[place] and not is_yardstick(self.rows[place].title)]
        if not self.chosen or not candidates:
            return 0
        return max(candidates, key=lambda place: mean(found[place].values()))

    @property
    def places(self) -> range:
        """Of all rows."""
        return range(len(self.rows))

    def accuracies(self, place: int, measure: str = "") -> Accuracies:
        """Those of a row, on the samples that are compared or on others."""
        row = self.rows[place]
        return row.test if (measure or self.measure) == TEST else row.validation

    @cached_property
    def differences(self) -> dict[int, Difference]:
        """By how much the leading row is above each other one that shares a seed with it; gains tell of yardsticks."""
        mine = self.accuracies(self.lead)
        others = [place for place in self.places if place != self.lead and not is_yardstick(self.rows[place].title)]
        found = {place: each for place in others if (each := compare(mine, self.accuracies(place)))}
        return dict(zip(found, correct(list(found.values())), strict=True))

    @cached_property
    def yardsticks(self) -> list[dict[str, int]]:
        """For each row the places of the rows that are its yardsticks, by kind."""
        known = [(yardsticks(row.settings), key_of(row.settings)) if row.settings else ({}, "") for row in self.rows]
        places: dict[str, int] = {}
        for place, (_, key) in enumerate(known):
            if key and self.accuracies(place):
                places.setdefault(key, place)
        return [
            {kind: places[key] for kind in KINDS if kind in asked and (key := key_of(asked[kind])) in places}
            for asked, _ in known
        ]

    @cached_property
    def gains(self) -> list[Gain | None]:
        """The gain of each row over the best of its yardsticks, where one was run."""
        found = [
            find_gain(self.accuracies(place), {kind: self.accuracies(other) for kind, other in mine.items()})
            for place, mine in enumerate(self.yardsticks)
        ]
        corrected = iter(correct([gain.difference for gain in found if gain]))
        return [replace(gain, difference=next(corrected)) if gain else None for gain in found]

    def sentences(self) -> list[str]:
        """What leads, how it stands to the others, and what the yardsticks are."""
        return [*filter(None, [self.leading()]), *self.standing(), *self.measured()]

    def leading(self) -> str:
        """Which is the best, and by what it was chosen; nothing where none was to be."""
        if not self.chosen or len(self.rows) < 2 or not self.accuracies(self.lead, self.chosen_by):
            return ""
        row = self.rows[self.lead]
        mine = over_seeds(self.accuracies(self.lead, self.chosen_by))
        said = [f"Best by {self.chosen_by} accuracy: {row.title}, {mine}."]
        if self.chosen_by == VALIDATION:
            if row.test:
                said.append(f"On the test set it has {over_seeds(row.test)}.")
        else:
            said.append("Chosen on the test set it looks better there than it is: data.validation sets samples aside.")
        return " ".join(said)

    def standing(self) -> list[str]:
        """The differences, as many sentences as can be read."""
        if not self.differences:
            return []
        title = self.rows[self.lead].title
        if all(each.verdict == ONE_SEED for each in self.differences.values()):
            return ["One seed: differences have no interval, and decide nothing. --seeds 1,2,3 compares."]
        if len(self.differences) <= MAX_SENTENCES:
            return [each.sentence(title, self.rows[place].title) for place, each in self.differences.items()]
        found: dict[str, list[str]] = {}
        for place, each in sorted(self.differences.items(), key=lambda pair: pair[1].mean):
            found.setdefault(each.verdict, []).append(self.rows[place].title)
        parts = [f"{WORDS[verdict]} {len(names)} ({listed(names)})" for verdict, names in found.items()]
        return [f"Of {len(self.differences)} others, {title} is {'; '.join(parts)} (95 %, Holm)."]

    def measured(self) -> list[str]:
        """Which rows are yardsticks of which, those that share them together."""
        shared: dict[tuple[tuple[str, int], ...], list[str]] = {}
        for row, mine in zip(self.rows, self.yardsticks, strict=True):
            if mine:
                shared.setdefault(tuple(mine.items()), []).append(row.title)
        return [
            f"Yardsticks of {listed(names)}: "
            + ", ".join(f"{kind} {over_seeds(self.accuracies(place))}" for kind, place in mine)
            + "."
            for mine, names in shared.items()
        ]


def over_seeds(accuracies: Accuracies) -> str:
    """Mean and standard deviation in percent.

    >>> over_seeds({1: 50.0, 2: 52.0}), over_seeds({1: 50.0})
    ('51.0 ± 1.4 % (two seeds)', '50.0 % (one seed)')
    """
    values = list(accuracies.values())
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{spread} % ({count(len(values))} seed{'s' * (len(values) != 1)})"


def listed(names: Sequence[str], most: int = 4) -> str:
    """Names, the first few of many.

    >>> listed(["a", "b", "c"], 2), listed(["a, 1", "a, 2"])
    ('a, b and 1 more', 'a, 1; a, 2')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    between = "; " if any("," in name for name in names) else ", "
    return between.join(names[:most]) + more
