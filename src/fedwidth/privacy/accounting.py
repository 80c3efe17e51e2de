"""Accountants: what so many rounds of noise come to, as epsilon at a delta, by the best means that are installed.

    pld    privacy loss distributions of `dp-accounting` (the extra `privacy`); without amplification the exact formula
    rdp    Rényi divergences of `dp-accounting`, also of orders that are no whole numbers

Where the package is missing the bound by whole orders serves for both, and is named. Where that bound is above
`FINE_UP_TO` losses are told apart less finely, and above `MAX_EPSILON` it stands for their distribution, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from math import ceil, log2
from typing import Any

import numpy as np

from fedwidth.errors import OptionError
from fedwidth.privacy.gaussian import gaussian_epsilon, smallest
from fedwidth.privacy.renyi import Divergence, renyi_epsilon, sampled_gaussian, skellam

ACCOUNTANTS = ("pld", "rdp")
PACKAGE = "dp-accounting"
OLDEST = (0, 6)
"""Versions of 2021 have the name and no accountant."""
BOUND = "Rényi divergences of whole orders"
STEP = 5e-4
"""How finely losses are told apart. Bounds hold for every step; this one gives epsilon to three digits after the point,
in a twentieth of a second, which every round of a run takes."""
FINE_UP_TO = 1e4
"""The epsilon up to which it does: the distribution of larger losses would have tens of millions of steps and more."""
COARSEST = 1024
"""How many times as long a step may be; the package cannot do with steps of hundreds."""
MAX_EPSILON = COARSEST * FINE_UP_TO
"""More than this promises nothing, however exactly it is known."""
MOST_ROUNDS = 10**6
"""More rounds than this have no distribution of coarse losses: the package takes minutes to see how wide it is."""
MAX_NOISE = 1e4
"""More than this nobody needs: noise that is asked for by its epsilon is looked for up to here."""


@dataclass(frozen=True)
class Accountant:
    """Says what rounds come to. Its answers never fall as rounds are added."""

    name: str
    """The means, in words."""
    version: str
    """That of the package behind it; empty where there is none."""
    spend: Callable[[int], float]
    """Epsilon of so many rounds."""
    _known: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

    def epsilon(self, rounds: int) -> float:
        """What so many rounds come to.

        Bounds are computed with a rounding of their own; where that would let them fall, the highest so far holds.
        """
        if rounds not in self._known:
            earlier = [epsilon for number, epsilon in self._known.items() if number < rounds]
            self._known[rounds] = max([self.spend(rounds), *earlier]) if rounds else 0.0
        return self._known[rounds]

    def affords(self, budget: float, most: int) -> int:
        """How many rounds, at most so many, cost no more than the budget.

        >>> Accountant("a tenth each", "", lambda rounds: rounds / 10).affords(0.55, 100)
        5
        """
        low, high = 0, most + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle) <= budget else (low, middle)
        return low


def gaussian_accountant(kind: str, *, noise: float, rate: float, delta: float) -> Accountant:
    """The accountant of Gaussian noise, where every client takes part in a round with this probability."""
    check_accounting(noise=noise, rate=rate, delta=delta)
    if kind not in ACCOUNTANTS:
        raise OptionError(f"an accountant is one of {', '.join(ACCOUNTANTS)}, not '{kind}'")
    if rate == 1.0 and kind == "pld":
        return Accountant("the exact formula", "", lambda rounds: gaussian_epsilon(noise, rounds, delta))
    if not (found := installed()):
        return _by_whole_orders(sampled_gaussian(rate, noise), delta, f" ({PACKAGE} is not installed)")
    if kind == "rdp":
        return Accountant(f"Rényi divergences of {PACKAGE}", found, _by_rdp(noise, rate, delta))
    return Accountant(f"privacy loss distributions of {PACKAGE}", found, _by_pld(noise, rate, delta))


def skellam_accountant(*, noise: float, sensitivity: float, length: int, delta: float) -> Accountant:
    """The accountant of Skellam noise that clients add to so many words, without amplification."""
    check_accounting(noise=noise, rate=1.0, delta=delta)
    return _by_whole_orders(skellam(noise, sensitivity, length), delta, " for Skellam noise")


def noise_for(epsilon: float, *, rounds: int, rate: float, delta: float, kind: str) -> float:
    """The least noise with which so many rounds cost no more than epsilon, to three digits, rounded up."""
    check_accounting(noise=1.0, rate=rate, delta=delta)

    def holds(logarithm: float) -> bool:
        noise = float(np.exp(logarithm))
        return gaussian_accountant(kind, noise=noise, rate=rate, delta=delta).epsilon(rounds) <= epsilon

    if not epsilon > 0 or not holds(np.log(MAX_NOISE)):
        raise OptionError(f"epsilon must be above 0, and reached by noise up to {MAX_NOISE:g}, not {epsilon:g}")
    found = float(np.exp(smallest(holds, np.log(0.05), np.log(MAX_NOISE), steps=18)))
    digits = 10 ** (np.floor(np.log10(found)) - 3)
    return float(f"{np.ceil(found / digits) * digits:.4g}")


def check_accounting(*, noise: float, rate: float, delta: float) -> None:
    """Refuse numbers that no accountant can do with."""
    if not 0.05 <= noise < np.inf:
        raise OptionError(f"noise must be a number from 0.05 on, not {noise:g}: less hides nobody")
    if not 0 < rate <= 1:
        raise OptionError(f"rate must be a probability above 0 and at most 1, not {rate:g}")
    if not 0 < delta < 1:
        raise OptionError(f"delta must be a probability above 0 and below 1, not {delta:g}")


def installed() -> str:
    """The version of dp-accounting that is installed and can be used; empty where there is none."""
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        return ""
    return found if tuple(int(part) for part in found.split(".")[:2]) >= OLDEST else ""


def _by_whole_orders(divergence: Divergence, delta: float, why: str) -> Accountant:
    return Accountant(BOUND + why, "", lambda rounds: renyi_epsilon(divergence, rounds, delta))


def _by_pld(noise: float, rate: float, delta: float) -> Callable[[int], float]:
    """One round's distribution of losses, composed with itself: in longer steps the wider it becomes."""
    from dp_accounting.pld import privacy_loss_distribution

    @cache
    def once(times: int) -> Any:
        return privacy_loss_distribution.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=times * STEP
        )

    bound = cache(sampled_gaussian(rate, noise))

    def spend(rounds: int) -> float:
        rough = renyi_epsilon(bound, rounds, delta)
        if rough > MAX_EPSILON or (rough > FINE_UP_TO and rounds > MOST_ROUNDS):
            return rough
        times = 2 ** ceil(log2(rough / FINE_UP_TO)) if rough > FINE_UP_TO else 1
        return min(rough, float(once(times).self_compose(rounds).get_epsilon_for_delta(delta)))

    return spend


def _by_rdp(noise: float, rate: float, delta: float) -> Callable[[int], float]:
    from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

    event = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))

    def spend(rounds: int) -> float:
        with _quiet():
            return float(RdpAccountant().compose(event, rounds).get_epsilon(delta))

    return spend


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what the package says of orders that it does without."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
