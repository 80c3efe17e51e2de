"""Whether one run is better than another: the one place that says so, for tables, reports and the results page.

Runs of one seed share the split, the clients of each round and their capacities, so they are compared seed by seed:
what they have in common drops out of the difference. All numbers are points of accuracy in percent, or of another
metric as it is measured.

    95 % interval   of the mean difference, by Student's t; one seed has none
    decided         that the mean is not zero (t-test, 5 %)
    equal           that it is nearer to zero than a margin (two one-sided tests, 5 % each)
    Holm            of several comparisons made at once, all are right in 95 of 100 cases

Two seeds that differ by the same amount, but not by nothing, are a coincidence of few test samples: how far seeds lie
apart has not been seen, so there is no interval, and nothing is decided. Of three such a coincidence is rare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from fedwidth.analysis.student import quantile, share_above, share_within
from fedwidth.analysis.wording import in_words, signed, unsigned
from fedwidth.objectives.metric import ACCURACY, Measure

CONFIDENCE = 0.95
MARGIN = 1.0
"""Points within which two accuracies count as equal."""
SAME = 1e-9
"""The share of themselves by which two differences that are the same number may lie apart: they were rounded."""
ABOVE, BELOW, EQUAL, OPEN, ONE_SEED = "above", "below", f"equal within ±{MARGIN:g}", "not decided", "one seed"


@dataclass(frozen=True)
class Difference:
    """By how many points one run is above another, seed by seed (or column by column of a table)."""

    values: tuple[float, ...]
    of: int = 1
    """How many comparisons are made at once, this one included."""
    p_value: float | None = None
    """The p-value of the mean against zero after Holm's correction; None where no correction was made."""
    equality_p_value: float | None = None
    """The p-value against a true difference of the margin or more after Holm's correction, or None."""
    measure: Measure = ACCURACY
    """What was measured. Only of shares in percent it is known how much is little: other metrics have no margin."""

    @property
    def mean(self) -> float:
        """The mean difference over all seeds."""
        return mean(self.values)

    @property
    def error(self) -> float:
        """The standard error of the mean; infinite where seeds do not tell it."""
        return stdev(self.values) / math.sqrt(len(self.values)) if self.tells_spread else math.inf

    @property
    def tells_spread(self) -> bool:
        """Whether it shows how far seeds lie apart: one does not, nor do two with one difference that is not zero."""
        if len(self.values) != 2:
            return len(self.values) > 2
        first, second = self.values
        return not math.isclose(first, second, rel_tol=SAME) or first == 0

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the true difference lies with a confidence of 95 %; None where seeds do not tell their spread."""
        if not self.tells_spread:
            return None
        reach = quantile(CONFIDENCE, len(self.values) - 1) * self.error
        return self.mean - reach, self.mean + reach

    @property
    def plain_p_value(self) -> float:
        """The p-value of the mean against zero: how often seeds alone would show as much."""
        if not self.tells_spread:
            return 1.0
        return 1 - share_within(_ratio(abs(self.mean), self.error), len(self.values) - 1)

    @property
    def plain_equality_p_value(self) -> float:
        """The p-value against a true difference of the margin or more, on the nearer side."""
        if not self.tells_spread:
            return 1.0
        return share_above(_ratio(MARGIN - abs(self.mean), self.error), len(self.values) - 1)

    @property
    def is_decided(self) -> bool:
        """Whether the true difference is taken not to be zero, at the 5 % level."""
        return (self.plain_p_value if self.p_value is None else self.p_value) < 1 - CONFIDENCE

    @property
    def is_equal(self) -> bool:
        """Whether the true difference is taken to be nearer to zero than the margin, at the 5 % level."""
        return (
            self.measure.percent
            and (self.plain_equality_p_value if self.equality_p_value is None else self.equality_p_value)
            < 1 - CONFIDENCE
        )

    @property
    def verdict(self) -> str:
        """What the seeds say: above, below, equal, not decided, or one seed."""
        if len(self.values) < 2:
            return ONE_SEED
        if self.is_decided:
            return ABOVE if self.mean > 0 else BELOW
        return EQUAL if self.is_equal else OPEN

    def __str__(self) -> str:
        found, show = self.interval, self._signed
        return show(self.mean) + (f" ({show(found[0])} to {show(found[1])})" if found else "")

    def _signed(self, number: float) -> str:
        return signed(number) if self.measure.percent else f"{number:+.3g}".replace("-", "−")

    def _unsigned(self, number: float) -> str:
        return unsigned(number) if self.measure.percent else f"{number:.3g}".replace("-", "−")

    def sentence(self, first: str, second: str) -> str:
        """How the first run stands to the second, as one English sentence.

        >>> print(Difference((1.0, 2.0, 3.0, 2.0, 2.0)).sentence("A", "B"))
        A is 2.0 points above B (95 %: 1.1 to 2.9, five seeds).
        >>> print(Difference((3.0,)).sentence("A", "B"))
        A is 3.0 points above B (one seed: no interval).
        """
        side, show = ABOVE if self.mean > 0 else BELOW, self._signed
        size = f"{abs(self.mean):.1f} points" if self.measure.percent else f"{abs(self.mean):.3g}"
        if self.interval is None:
            return f"{first} is {size} {side} {second} ({self._no_interval})."
        low, high = self.interval
        seeds = f"{in_words(len(self.values))} seeds"
        if self.is_decided:
            near, far = (low, high) if side == ABOVE else (-high, -low)
            interval = f"(95 %: {self._unsigned(near)} to {self._unsigned(far)}, {seeds})"
            equal = f"; they are {EQUAL}" if self.is_equal else ""
            return f"{first} is {size} {side} {second} {interval}{equal}."
        found = f"(difference {show(self.mean)}, 95 %: {show(low)} to {show(high)}, {seeds})"
        if self.is_equal:
            return f"{first} and {second} are {EQUAL} {found}."
        return f"Between {first} and {second} it is {OPEN}{self._among} {found}."

    def gain_sentence(self, run: str, yardstick: str) -> str:
        """The difference as what a run gains over a yardstick: of some metrics lower values are the better ones.

        >>> print(Difference((14.0, 2.0, 27.5)).gain_sentence("A", "exclude"))
        A's gain over exclude is not decided (+14.5, 95 %: −17.2 to +46.2, three seeds).
        >>> print(Difference((-1.0, -2.0, -3.0, -2.0, -2.0)).gain_sentence("A", "exclude"))
        A loses against exclude: this is decided (−2.0, 95 %: −2.9 to −1.1, five seeds).
        """
        show = self._signed
        if self.interval is None:
            return f"{run}'s gain over {yardstick} is {show(self.mean)} ({self._no_interval})."
        low, high = self.interval
        found = f"({show(self.mean)}, 95 %: {show(low)} to {show(high)}, {in_words(len(self.values))} seeds)"
        equal = f"; they are {EQUAL}" if self.is_equal else ""
        if self.is_decided and self.mean < 0:
            return f"{run} loses against {yardstick}: this is decided {found}{equal}."
        verdict = "decided" if self.is_decided else f"none: they are {EQUAL}" if equal else f"{OPEN}{self._among}"
        return f"{run}'s gain over {yardstick} is {verdict} {found}{equal if self.is_decided else ''}."

    @property
    def _no_interval(self) -> str:
        """Why there is none."""
        return f"{'two seeds differ by the same' if len(self.values) > 1 else 'one seed'}: no interval"

    @property
    def _among(self) -> str:
        """How many comparisons leave it open, where it would be decided alone."""
        return f" among {in_words(self.of)} comparisons" if self.plain_p_value < 1 - CONFIDENCE else ""


def compare(first: Mapping[int, float], second: Mapping[int, float], measure: Measure = ACCURACY) -> Difference | None:
    """By how much the first is above the second, from their accuracies by seed; None where they share no seed."""
    shared = tuple(first[seed] - second[seed] for seed in sorted(first) if seed in second)
    return Difference(shared, measure=measure) if shared else None


def correct(differences: Sequence[Difference]) -> list[Difference]:
    """The same differences as members of one family, by Holm; those that do not tell the spread of seeds are not
    tested and do not count."""
    tested = [each for each in differences if each.tells_spread]
    zero = iter(holm([each.plain_p_value for each in tested]))
    apart = iter(holm([each.plain_equality_p_value for each in tested]))
    return [
        replace(each, of=len(tested), p_value=next(zero), equality_p_value=next(apart)) if each.tells_spread else each
        for each in differences
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number (Holm 1979): the smallest times all, the next times one fewer, never falling.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, least = [0.0] * len(p_values), 0.0
    for rank, number in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[number]))
        corrected[number] = least
    return corrected


def _ratio(size: float, error: float) -> float:
    """A mean in units of its error; where three values or more are one, any mean but zero is beyond doubt."""
    return size / error if error else math.copysign(math.inf, size) if size else 0.0
