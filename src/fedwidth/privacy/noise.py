"""Noise, and how large a sum is beside it.

Noise comes from the run's seed like everything random, so that a run can be repeated: who knows the seed knows the
noise. And the generators are numpy's, which are not made against somebody who sees their output.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedwidth.errors import OptionError


def skellam_noise(generator: np.random.Generator, variance: float, length: int) -> NDArray[np.int64]:
    """Whole numbers with Skellam's distribution: differences of two numbers of Poisson's with half the variance each.

    Sums of them are of the same distribution with the sum of the variances: what makes them fit for shares.
    """
    return generator.poisson(variance / 2, length) - generator.poisson(variance / 2, length)


def whole_within(changes: NDArray[np.float64], bound: float) -> NDArray[np.int64]:
    """Changes, of a norm of at most the bound, as whole numbers of a norm of at most the bound.

    Rounding may make them longer, by half the square root of their number at most. Then they are made so much shorter
    before.

    >>> whole_within(np.array([0.6, 0.6, 0.6]), 1.1).tolist()
    [0, 0, 0]
    """
    found = np.rint(changes)
    if math.sqrt(float(np.square(found).sum())) > bound:
        room = bound - math.sqrt(changes.size) / 2
        found = np.rint(changes * (max(0.0, room) / max(float(np.linalg.norm(changes)), 1e-300)))
    return found.astype(np.int64)


def signal_to_noise(noise: float, denominators: Iterable[tuple[float, float]]) -> float:
    """How long the sum of clients that all agree is at best, beside the length that its noise has.

    `denominators` are pairs: how many elements, divided by how much. A mean of updates that were clipped to C is no
    longer than C, and the noise has the length noise C sqrt(sum of elements / denominator^2). So the clip does not
    matter. With n clients everywhere it is n / (noise sqrt(elements)).

    >>> round(signal_to_noise(1.0, [(11.2e6, 10.0)]), 3), round(signal_to_noise(1.0, [(44.5e3, 1000.0)]), 1)
    (0.003, 4.7)
    """
    if not noise:
        raise OptionError("there is no noise that a signal could be compared with")
    return 1 / (noise * math.sqrt(sum(elements / by**2 for elements, by in denominators)))
