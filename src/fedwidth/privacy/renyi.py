"""What noise costs by Rényi divergences: bounds that need no package, and add up over rounds.

T rounds whose divergence is R(alpha) for every order alpha have T R(alpha), and therefore, by the best of all orders,

    epsilon = T R(alpha) + log(1 - 1 / alpha) - log(delta alpha) / (alpha - 1)

(Canonne, Kamath and Steinke 2020, Proposition 12).
"""

from __future__ import annotations

import math
from collections.abc import Callable

ORDERS = (*range(2, 65), *range(68, 257, 4), 320, 384, 512, 768, 1024)

Divergence = Callable[[int], float]
"""The divergence of one round by its order, a whole number from 2 on."""


def renyi_epsilon(divergence: Divergence, rounds: int, delta: float) -> float:
    """Epsilon of so many rounds at this delta.

    >>> round(renyi_epsilon(sampled_gaussian(0.01, 1.1), 1000, 1e-5), 4)
    1.7253
    """
    if not rounds:
        return 0.0
    found: list[float] = [
        rounds * divergence(order) + math.log1p(-1 / order) - math.log(delta * order) / (order - 1) for order in ORDERS
    ]
    return max(0.0, min(found))


def sampled_gaussian(rate: float, noise: float) -> Divergence:
    """Gaussian noise where every client takes part with this probability (Mironov, Talwar and Zhang 2019, Eq. 6)."""

    def divergence(order: int) -> float:
        if rate == 1.0:
            return order / (2 * noise**2)
        terms = [
            _log_choose(order, k) + (order - k) * math.log1p(-rate) + k * math.log(rate) + k * (k - 1) / (2 * noise**2)
            for k in range(order + 1)
        ]
        return max(0.0, _log_sum(terms)) / (order - 1)

    return divergence


def skellam(noise: float, sensitivity: float, length: int) -> Divergence:
    """Skellam noise of variance mu = (noise sensitivity)^2 on so many whole numbers (Agarwal et al. 2021, Theorem 3.5).

    `sensitivity` is how far one client can move them in Euclidean norm. They are whole, so the sum of all moves is at
    most that squared, and at most its square root of `length`-fold.
    """
    second, mu = sensitivity**2, (noise * sensitivity) ** 2
    first = min(math.sqrt(length) * sensitivity, second)

    def divergence(order: int) -> float:
        more = min(((2 * order - 1) * second + 6 * first) / (4 * mu**2), 3 * first / (2 * mu))
        return order * second / (2 * mu) + more

    return divergence


def _log_choose(of: int, taken: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(taken + 1) - math.lgamma(of - taken + 1)


def _log_sum(logs: list[float]) -> float:
    largest = max(logs)
    return largest + math.log(math.fsum(math.exp(each - largest) for each in logs))
