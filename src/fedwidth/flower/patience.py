"""How long a round waits.

until `enough` answers are there           then it ends at once
or `most` seconds have passed              then it ends with those it has
or, once a quorum of them is there,        as long again as the quorum took, but at least `least` seconds:
                                           one device that hangs does not cost a round its whole deadline
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

REMINDER_SECONDS = 60.0


class Patience:
    """The patience of one round, which begins now."""

    def __init__(
        self, enough: int, quorum: float, *, least: float, most: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.enough, self.quorum = enough, math.ceil(quorum * enough)
        self._clock, self._began = clock, clock()
        self._least, self._most = least, most
        self._end = self._began + most
        self._has_quorum, self._said = False, self._began

    @property
    def seconds(self) -> float:
        """How long the round has lasted."""
        return self._clock() - self._began

    def goes_on(self, answered: int) -> bool:
        """Whether to wait any longer, with so many answers."""
        if answered >= self.enough:
            return False
        if not self._has_quorum and answered >= self.quorum:
            self._has_quorum = True
            self._end = min(self._end, self._clock() + max(self._least, self.seconds))
            self._said = -math.inf  # which is worth a line
        return self._clock() < self._end

    def why(self, answered: int) -> str:
        """What is being waited for, whenever that is worth a line; else nothing.

        >>> now = 0.0
        >>> patience = Patience(4, 0.75, least=5, most=600, clock=lambda: now)
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
        return f"{answered} of {self.enough} answered within {self.seconds:.3g} s; {rest}"
