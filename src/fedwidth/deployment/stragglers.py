"""Clients that did not answer in time are drawn less often.

After k missed rounds in a row a client is passed over for the next 2**k - 1 rounds, at most `MAX_PAUSE`. After one
answer it is drawn like every other client. So a device that hangs costs one round in two, then one in four, and is
never given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

MAX_PAUSE = 31
"""Rounds for which a client is passed over at most."""


@dataclass
class Stragglers:
    """Counts the rounds that each client missed, for as long as the server runs: a slow client may be fast tomorrow."""

    missed: Counter[int] = field(default_factory=Counter)
    """How many rounds in a row each client has missed."""
    until: dict[int, int] = field(default_factory=dict)
    """The round, counted from 0, in which a client may be drawn again."""

    def note(self, round: int, *, late: Collection[int], answered: Collection[int]) -> dict[int, int]:
        """Take down how a round ended; returns for how many rounds each late client is passed over now.

        >>> stragglers = Stragglers()
        >>> stragglers.note(0, late=[3], answered=[1]), stragglers.is_passed_over(3, 1), stragglers.is_passed_over(3, 2)
        ({3: 1}, True, False)
        >>> stragglers.note(2, late=[3], answered=[])
        {3: 3}
        """
        for client in answered:
            self.missed.pop(client, None)
            self.until.pop(client, None)
        pauses = {}
        for client in late:
            self.missed[client] += 1
            pauses[client] = min(2 ** min(self.missed[client], 10) - 1, MAX_PAUSE)
            self.until[client] = round + 1 + pauses[client]
        return pauses

    def is_passed_over(self, client: int, round: int) -> bool:
        """Whether a client is left out of a round's draw."""
        return round < self.until.get(client, 0)
