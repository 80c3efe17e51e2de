"""The experiments of one table, compared: each with a leading one, and each with its yardsticks.

The main run of a recipe leads; in a sweep the best one does, by validation accuracy where there are validation samples.
The differences to it are corrected together by Holm, so are the gains of whole models, and so, apart from these, are
the gains of widths that answer together (`fedwidth.analysis.difference`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import permutations
from statistics import mean

from fedwidth.analysis.difference import ABOVE, BELOW, EQUAL, ONE_SEED, OPEN, Difference, compare, correct
from fedwidth.analysis.wording import in_words, listed, over_seeds
from fedwidth.analysis.yardsticks import (
    EXCLUDE,
    KINDS,
    SMALLEST,
    Accuracies,
    Gain,
    find_gain,
    is_yardstick,
    key_at_width,
    yardstick_key,
    yardstick_keys,
)
from fedwidth.evaluation.samples import TEST, VALIDATION, samples_to_choose_by, samples_to_report
from fedwidth.evaluation.widths import ALL, CHOSEN, key_of
from fedwidth.objectives.metric import ACCURACY, Measure
from fedwidth.settings import Settings

MAX_SENTENCES = 8
"""Up to so many differences are told one by one; of more it is said how many came out how."""

WORDS = {
    ABOVE: ABOVE,
    BELOW: BELOW,
    EQUAL: f"{EQUAL} with",
    OPEN: "undecided against",
    ONE_SEED: "with one seed beside",
}

GAINS = {ABOVE: "above zero are", BELOW: "below zero", EQUAL: f"{EQUAL} of it", OPEN: OPEN}
"""What is said of gains that came out so, where they are counted."""


@dataclass(frozen=True)
class Row:
    """One experiment: its accuracies in percent, by seed."""

    title: str
    settings: Settings | None
    """None where the settings cannot be read; such a row has no yardsticks."""
    test: Accuracies
    validation: Accuracies
    together: Accuracies = field(default_factory=dict)
    """What models of its widths score that answer together, on the test set."""
    which: str = ALL
    """Which of its widths these are: all that were measured, or those that validation samples choose."""

    @classmethod
    def of(
        cls, title: str, settings: Settings | None, scores: Callable[[str], Accuracies], metric: str = ACCURACY.name
    ) -> Row:
        """The row of an experiment whose scores by seed are asked by the name that they have in summaries."""
        test, validation = scores(TEST.key(metric)), scores(VALIDATION.key(metric))
        every, chosen = (scores(key_of(which, metric)) if test else {} for which in (ALL, CHOSEN))
        return cls(title, settings, test, validation, chosen or every, CHOSEN if chosen else ALL)

    @property
    def answering(self) -> str:
        """Which of its widths answer together, as sentences have it."""
        chosen = "the widths that validation samples choose, one or several"
        return chosen if self.which == CHOSEN else "all widths together"


@dataclass(frozen=True)
class Comparison:
    """Experiments that share a table, and which of them leads."""

    rows: tuple[Row, ...]
    best_leads: bool = False
    """Whether the best row leads; otherwise the first one does."""
    metric: Measure = ACCURACY
    """What was measured of every row."""

    @cached_property
    def measure(self) -> str:
        """Which accuracies are compared: those on the test set, unless a row has none."""
        return samples_to_report(self._measured).name

    @cached_property
    def _measured(self) -> set[str]:
        """The accuracies that every row has."""
        found = {TEST.key(): [row.test for row in self.rows], VALIDATION.key(): [row.validation for row in self.rows]}
        return {key for key, own in found.items() if all(own)}

    @property
    def chosen_by(self) -> str:
        """Which accuracies the best row is chosen by."""
        return samples_to_choose_by(self._measured).name

    @cached_property
    def lead(self) -> int:
        """The number of the row that leads."""
        found = {number: self.accuracies(number, self.chosen_by) for number in self._compared()}
        candidates = [number for number in found if found[number]]
        if not self.best_leads or not candidates:
            return 0
        return max(candidates, key=lambda number: self.metric.sign * mean(found[number].values()))

    def accuracies(self, number: int, measure: str = "") -> Accuracies:
        """The accuracies of one row: those that are compared, unless another measure is asked for."""
        row = self.rows[number]
        return row.test if (measure or self.measure) == TEST.name else row.validation

    @cached_property
    def differences(self) -> dict[int, Difference]:
        """By how much the leading row is above each other one that shares a seed with it, by the number of the row.

        Yardsticks are left out: gains tell how rows stand to them.
        """
        mine = self.accuracies(self.lead)
        others = [number for number in self._compared() if number != self.lead]
        found = {number: each for number in others if (each := compare(mine, self.accuracies(number), self.metric))}
        return dict(zip(found, correct(list(found.values())), strict=True))

    def _compared(self) -> list[int]:
        """The numbers of the rows that are not there as yardsticks alone."""
        return [number for number, row in enumerate(self.rows) if not is_yardstick(row.title)]

    @cached_property
    def yardsticks(self) -> list[dict[str, int]]:
        """For each row the numbers of the rows that are its yardsticks, by kind, and those of its devices beside
        a server's model of other widths."""
        known: list[tuple[dict[str, list[str]], str]] = [
            (yardstick_keys(row.settings), yardstick_key(row.settings)) if row.settings else ({}, "")
            for row in self.rows
        ]
        numbers: dict[str, int] = {}
        for number, (_, key) in enumerate(known):
            if key and self.accuracies(number):
                numbers.setdefault(key, number)
        found = [
            {
                kind: numbers[there[0]]
                for kind in KINDS
                if (there := [key for key in asked.get(kind, ()) if key in numbers])
            }
            for asked, _ in known
        ]
        for number, others in self._of_other_widths(found).items():
            found[number] |= {kind: other for kind, other in others.items() if other not in found[number].values()}
        return found

    def _of_other_widths(self, found: Sequence[Mapping[str, int]]) -> dict[int, dict[str, int]]:
        """For each row with yardsticks, those of the same devices beside a server's model of another width."""
        runs = {number: own for number, row in enumerate(self.rows) if found[number] and (own := row.settings)}
        widths = {run.model.width for run in runs.values()}
        at = {(number, width): run for number, run in runs.items() for width in widths if width <= run.model.width}
        keys = {place: key_at_width(run, place[1]) for place, run in at.items()} if len(widths) > 1 else {}
        others: dict[int, dict[str, int]] = {number: {} for number in runs}
        for (one, wide), (two, narrow) in permutations(runs.items(), 2):
            width = narrow.model.width
            if width < wide.model.width and keys[one, width] == keys[two, width]:
                others[one] |= _at_width(width, found[two])
                others[two] |= _at_width(wide.model.width, found[one])
        return others

    @cached_property
    def gains(self) -> list[Gain | None]:
        """The gain of each row over the best of its yardsticks; None where none was run."""
        return self._gains_of([self.accuracies(number) for number in range(len(self.rows))])

    @cached_property
    def gains_together(self) -> list[Gain | None]:
        """The gain of each row whose widths answer together, over the same yardsticks; None where none do."""
        tested = self.measure == TEST.name  # so is what they score together
        return self._gains_of([row.together if tested else {} for row in self.rows])

    def _gains_of(self, scores: Sequence[Accuracies]) -> list[Gain | None]:
        """The gain of each row with these scores, corrected together; that of a yardstick is no question asked."""
        found = [
            find_gain(own, {kind: self.accuracies(other) for kind, other in mine.items()}, self.metric)
            for own, mine in zip(scores, self.yardsticks, strict=True)
        ]
        asked = {number: gain for number in self._compared() if (gain := found[number])}
        for number, difference in zip(asked, correct([gain.difference for gain in asked.values()]), strict=True):
            found[number] = replace(asked[number], difference=difference)
        return found

    def sentences(self) -> list[str]:
        """All that is said: which row leads, how it stands to the others, what is gained, what yardsticks reach."""
        lower = f"Of the {self.metric.title}, lower is better." if not self.metric.higher_is_better else ""
        told = [*self.difference_sentences(), *self.gain_sentences(), *self.together_sentences()]
        told += self.yardstick_sentences()
        said = [self.leading_sentence(), *told]
        return [*filter(None, [*said, lower if any(said) else ""])]

    def leading_sentence(self) -> str:
        """Which row is the best, and by what it was chosen; empty where no best one was asked for."""
        if not self.best_leads or len(self.rows) < 2 or not self.accuracies(self.lead, self.chosen_by):
            return ""
        row = self.rows[self.lead]
        mine = accuracy_text(self.accuracies(self.lead, self.chosen_by), self.metric)
        said = [f"Best by {self.chosen_by} {self.metric.title}: {row.title}, {mine}."]
        if self.chosen_by == VALIDATION.name:
            if row.test:
                said.append(f"On the test set it has {accuracy_text(row.test, self.metric)}.")
        else:
            said.append("Chosen on the test set it looks better there than it is: data.validation sets samples aside.")
        return " ".join(said)

    def difference_sentences(self) -> list[str]:
        """How the leading row stands to the others: a sentence for each, or one for all where they are many."""
        if not self.differences:
            return []
        title = self.rows[self.lead].title
        if all(each.verdict == ONE_SEED for each in self.differences.values()):
            return ["One seed: differences have no interval, and decide nothing. --seeds 1,2,3 compares."]
        if len(self.differences) <= MAX_SENTENCES:
            return [each.sentence(title, self.rows[number].title) for number, each in self.differences.items()]
        found: dict[str, list[str]] = {}
        for number, each in sorted(self.differences.items(), key=lambda pair: pair[1].mean):
            found.setdefault(each.verdict, []).append(self.rows[number].title)
        parts = [f"{WORDS[verdict]} {len(names)} ({listed(names)})" for verdict, names in found.items()]
        return [f"Of {len(self.differences)} others, {title} is {'; '.join(parts)} (95 %, Holm)."]

    def gain_sentences(self) -> list[str]:
        """Whether each gain is decided: a sentence for each, or one for all where they are many; none with one seed."""
        return _told([(self.rows[number].title, gain) for number in self._compared() if (gain := self.gains[number])])

    def together_sentences(self) -> list[str]:
        """The same of the gains of widths that answer together."""
        found: dict[str, list[tuple[str, Gain]]] = {}
        for number in self._compared():
            if gain := self.gains_together[number]:
                row = self.rows[number]
                found.setdefault(row.answering, []).append((row.title, gain))
        return [f"With {how}: {said}" for how, gains in found.items() for said in _told(gains)]

    def yardstick_sentences(self) -> list[str]:
        """What the yardsticks of each row reach; rows that share their yardsticks share a sentence."""
        shared: dict[tuple[tuple[str, int], ...], list[str]] = {}
        for row, mine in zip(self.rows, self.yardsticks, strict=True):
            if mine:
                shared.setdefault(tuple(mine.items()), []).append(row.title)
        return [
            f"Yardsticks of {listed(names)}: "
            + ", ".join(f"{kind} {accuracy_text(self.accuracies(number), self.metric)}" for kind, number in mine)
            + "."
            for mine, names in shared.items()
        ]


def _told(gains: Sequence[tuple[str, Gain]]) -> list[str]:
    """Sentences about gains of more than one seed, each with the title of its run: one for all where they are many."""
    found = [(title, gain) for title, gain in gains if gain.difference.interval]
    if len(found) <= MAX_SENTENCES:
        return [gain.difference.gain_sentence(title, gain.kind) for title, gain in found]
    verdicts: dict[str, list[str]] = {}
    for title, gain in sorted(found, key=lambda pair: -pair[1].difference.mean):
        verdicts.setdefault(gain.difference.verdict, []).append(title)
    parts = [f"{GAINS[verdict]} {len(names)} ({listed(names)})" for verdict, names in verdicts.items()]
    return [f"Of {len(found)} gains, {'; '.join(parts)} (95 %, Holm)."]


def _at_width(width: float, found: Mapping[str, int]) -> dict[str, int]:
    """The yardsticks of a width that count for other widths, too, under names that tell whose they are."""
    shown = Fraction(width).limit_denominator(1000)
    return {f"{kind} at width {shown}": found[kind] for kind in (EXCLUDE, SMALLEST) if kind in found}


def accuracy_text(accuracies: Accuracies, metric: Measure = ACCURACY) -> str:
    """The accuracy (or another metric) of one experiment as sentences have it: mean, deviation, and how many seeds.

    >>> accuracy_text({1: 50.0, 2: 52.0}), accuracy_text({1: 50.0})
    ('51.0 ± 1.4 % (two seeds)', '50.0 % (one seed)')
    """
    seeds = f"{in_words(len(accuracies))} seed{'s' * (len(accuracies) != 1)}"
    return f"{over_seeds(accuracies.values(), digits=1, metric=metric)}{metric.unit} ({seeds})"
