"""Student's t distribution for whole degrees of freedom, exactly, by finite sums."""

from __future__ import annotations

import math
from functools import lru_cache

HALVINGS = 200
"""How often the interval in which a quantile lies is halved: far more often than a float has digits."""


def share_within(t: float, freedom: int) -> float:
    """How much of the distribution lies between -t and t (Abramowitz and Stegun, 26.7.3 and 26.7.4).

    >>> round(share_within(4.303, 2), 4), round(share_within(12.706, 1), 4)
    (0.95, 0.95)
    """
    return _share(math.atan(t / math.sqrt(freedom)), freedom)


def share_above(t: float, freedom: int) -> float:
    """How much of the distribution lies above t.

    >>> share_above(0, 5)
    0.5
    """
    return (1 - math.copysign(share_within(abs(t), freedom), t)) / 2


@lru_cache
def quantile(within: float, freedom: int) -> float:
    """The t for which so much of the distribution lies between -t and t.

    >>> round(quantile(0.95, 4), 3)
    2.776
    """
    low, high = 0.0, math.pi / 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _share(middle, freedom) < within else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _share(angle: float, freedom: int) -> float:
    odd, cosine = freedom % 2, math.cos(angle)
    total, term = 0.0, cosine if odd else 1.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * cosine**2
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
