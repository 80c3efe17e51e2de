"""Changes of weights as whole numbers modulo 2^32, so that a sum does not depend on its order and masks cancel exactly.

Of n clients, each of weight at most w_max and no change larger than the clip C, a word is

    q = round(w * clip(trained - start, -C, C) * scale),    scale = ((2^31 - 1) div n - 1) / (w_max C)

all in double precision, so n of them stay below 2^31 and their sum, read as a signed number, is right. The mean of n_h
holders of total weight W is wrong by at most n_h / (2 scale W), and a change of 0 is 0 exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwidth.errors import OptionError, UpdateError

LARGEST = 2**31 - 1
MAX_CLIENTS = 2**16 - 1
"""Clients of a round, at most: their numbers are two bytes, and more would leave a change less than 15 bits."""
CHUNK = 1 << 15
"""Elements that are converted at a time: a small device does not hold its sub-model in double precision."""


@dataclass(frozen=True)
class FixedPoint:
    """How changes become words, and sums of words become changes."""

    clients: int
    """How many clients may be added up."""
    clip: float = 1.0
    """The largest change of one weight that counts."""
    max_weight: float = 1.0
    """What a client weighs at most."""

    def __post_init__(self) -> None:
        if not 1 <= self.clients <= MAX_CLIENTS:
            raise OptionError(f"secure sums are of 1 to {MAX_CLIENTS} clients, not of {self.clients}")
        if not (0 < self.clip < np.inf and 0 < self.max_weight < np.inf):
            raise OptionError("secure sums need a clip and a largest weight that are finite numbers above 0")

    @property
    def steps(self) -> int:
        """The word of the largest change of the heaviest client."""
        return LARGEST // self.clients - 1

    @property
    def scale(self) -> float:
        """What a change of 1 is for a client of weight 1."""
        return self.steps / (self.max_weight * self.clip)

    def words(
        self, trained: NDArray[np.floating], start: NDArray[np.floating], weight: float = 1.0
    ) -> tuple[NDArray[np.uint32], int]:
        """The words of what one client changed, and how many changes were clipped. What is not finite is refused."""
        if not 0 < weight <= self.max_weight:
            raise UpdateError(f"a client's weight must be above 0 and at most {self.max_weight:g}, not {weight:g}")
        found, clipped = np.empty(trained.size, np.uint32), 0
        for begin in range(0, trained.size, CHUNK):
            part = trained[begin : begin + CHUNK].astype(np.float64)
            part -= start[begin : begin + CHUNK]
            if not np.isfinite(part).all():
                raise UpdateError("a change is not finite: it is not added to a secure sum")
            clipped += int(np.count_nonzero(np.abs(part) > self.clip))
            np.clip(part, -self.clip, self.clip, out=part)
            part *= weight * self.scale
            found[begin : begin + CHUNK] = np.rint(part, out=part).astype(np.int64).astype(np.uint32)
        return found, clipped

    def mean(self, total: NDArray[np.uint32], weight: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean change of clients of this total weight, from the sum of their words.

        >>> point = FixedPoint(clients=2)
        >>> words = [point.words(np.array([trained]), np.ones(1))[0] for trained in (1.5, 0.75)]
        >>> bool(abs(point.mean(words[0] + words[1], 2.0)[0] - 0.125) <= 0.5 / point.scale)
        True
        """
        return total.view(np.int32) / (self.scale * weight)

    def error(self, holders: int, weight: float) -> float:
        """How far the mean of so many holders of this total weight may be from the exact one."""
        return holders / (2 * self.scale * weight)
