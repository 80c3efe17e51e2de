"""Numbers about a client that are added up with the words of its first segment: nobody sees them singly.

They are how many changes were clipped, how many samples were seen, and the loss. Each has so many bits that the sum of
all clients of a round stays below 2^32; what is larger counts as the largest that there is room for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NUMBER = 3
"""Words that the facts of a client take."""
MAX_LOSS = 1000.0
_WORDS = 2**32 - 1


@dataclass(frozen=True)
class Facts:
    """The facts of one client, or of several together."""

    clipped: int = 0
    """How many single changes were beyond the clip."""
    passes: int = 0
    """How many samples were trained on, each counted as often as it was seen."""
    loss: float = 0.0
    """The sum of the clients' losses."""

    def encode(self, clients: int) -> NDArray[np.uint32]:
        """The words of one client's facts, where so many clients are added up."""
        most = _WORDS // clients
        loss = self.loss if 0 <= self.loss <= MAX_LOSS else MAX_LOSS  # also one that is no number
        return np.array([min(self.clipped, most), min(self.passes, most), round(loss / MAX_LOSS * most)], np.uint32)

    @classmethod
    def decode(cls, totals: Iterable[NDArray[np.uint32]], clients: int) -> Facts:
        """The facts of all whose words were added up to these totals.

        >>> found = Facts.decode([Facts(3, 60, 2.25).encode(10) + Facts(0, 40, 0.5).encode(10)], 10)
        >>> found.clipped, found.passes, round(found.loss, 5)
        (3, 100, 2.75)
        """
        clipped, passes, loss = sum((total.astype(np.int64) for total in totals), np.zeros(NUMBER, np.int64)).tolist()
        return cls(clipped, passes, loss * MAX_LOSS / (_WORDS // clients))
