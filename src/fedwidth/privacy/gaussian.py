"""What Gaussian noise without amplification costs, exactly (Balle and Wang 2018, Theorem 8).

Rounds of noise z (in multiples of what one client can change) compose to one of mu = sqrt(rounds) / z, for which

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - exp(epsilon) Phi(-mu / 2 - epsilon / mu)
"""

from __future__ import annotations

import math
from collections.abc import Callable

FAR = 30.0
"""From here on the tail of the normal distribution is taken from its asymptotic series: the function underflows."""


def gaussian_epsilon(noise: float, rounds: int, delta: float) -> float:
    """Epsilon of so many rounds at this delta.

    >>> round(gaussian_epsilon(1.0, 1, 1e-5), 6), round(gaussian_epsilon(4.0, 10, 1e-5), 6)
    (4.377178, 3.341409)
    """
    if not rounds:
        return 0.0
    mu = math.sqrt(rounds) / noise
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2
    return smallest(lambda epsilon: gaussian_delta(mu, epsilon) <= delta, 0.0, high)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Delta at this epsilon."""
    first = math.exp(log_tail(epsilon / mu - mu / 2))
    return first - math.exp(min(0.0, epsilon + log_tail(epsilon / mu + mu / 2)))


def log_tail(x: float) -> float:
    """The logarithm of the probability that a standard normal number is above x.

    >>> log_tail(0.0) == math.log(0.5), round(log_tail(100.0), 3)
    (True, -5005.524)
    """
    if x < FAR:
        return math.log(math.erfc(x / math.sqrt(2)) / 2)
    series = 1 - x**-2 + 3 * x**-4 - 15 * x**-6
    return -x * x / 2 - math.log(x * math.sqrt(2 * math.pi)) + math.log(series)


def smallest(holds: Callable[[float], bool], low: float, high: float, steps: int = 100) -> float:
    """The smallest number for which something holds that holds at `high` and from some number on, by halving."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
