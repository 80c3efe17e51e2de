"""How long a round waits for answers.

until `wanted` answers are there           then it ends at once
or `max_seconds` have passed               then it ends with the answers it has
or, once a quorum of them is there,        as long again as the quorum took, but at least `min_seconds`:
                                           one device that hangs does not cost a round its whole deadline
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

REMINDER_SECONDS = 60.0
"""How often the log says what a round is waiting for."""


class Patience:
    """Decides how long one round waits; the round begins when this is made."""

    def __init__(
        self,
        wanted: int,
        quorum: float,
        *,
        min_seconds: float,
        max_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wanted, self.quorum = wanted, math.ceil(quorum * wanted)
        self._clock, self._began = clock, clock()
        self._min_seconds = min_seconds
        self._end = self._began + max_seconds
        self._has_quorum, self._said = False, self._began

    @property
    def seconds(self) -> float:
        """How long the round has lasted until now."""
        return self._clock() - self._began

    def goes_on(self, answered: int) -> bool:
        """Whether the round should wait any longer, now that so many clients have answered."""
        if answered >= self.wanted:
            return False
        if not self._has_quorum and answered >= self.quorum:
            self._has_quorum = True
            self._end = min(self._end, self._clock() + max(self._min_seconds, self.seconds))
            self._said = -math.inf  # the log should say so
        return self._clock() < self._end

    def why(self, answered: int) -> str:
        """What the round is waiting for, in words, once a minute and when the quorum is reached; else empty.

        >>> now = 0.0
        >>> patience = Patience(4, 0.75, min_seconds=5, max_seconds=600, clock=lambda: now)
        >>> now = 12.0
        >>> patience.goes_on(3), patience.why(3)
        (True, '3 of 4 answered within 12 s; waiting at most 12 s more')
        >>> patience.why(3)
        ''
        """
        now = self._clock()
        if now - self._said < REMINDER_SECONDS:
            return ""
        self._said = now
        rest = f"waiting at most {self._end - now:.3g} s more"
        return f"{answered} of {self.wanted} answered within {self.seconds:.3g} s; {rest}"
