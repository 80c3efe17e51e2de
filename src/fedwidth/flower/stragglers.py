"""Who is asked less often: clients that were asked and did not answer in time.

After k rounds missed in a row a client is passed over for the next 2**k - 1 rounds, at most `MOST`; one answer and it
is drawn like everybody else. So a device that hangs costs one round in two, then one in four, and is never given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

MOST = 31


@dataclass
class Stragglers:
    """Missed rounds by client. Kept while the server runs: what was slow yesterday need not be today."""

    missed: Counter[int] = field(default_factory=Counter)
    """In a row."""
    until: dict[int, int] = field(default_factory=dict)
    """The round (from 0) in which a client may be drawn again."""

    def note(self, round: int, *, late: Collection[int], answered: Collection[int]) -> dict[int, int]:
        """A round has ended: for how many rounds each of those that were late is passed over now.

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
            pauses[client] = min(2 ** min(self.missed[client], 10) - 1, MOST)
            self.until[client] = round + 1 + pauses[client]
        return pauses

    def is_passed_over(self, client: int, round: int) -> bool:
        """Whether a client is left out of a round's draw."""
        return round < self.until.get(client, 0)
