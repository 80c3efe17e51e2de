"""Which clients are left out for a while, because of what they sent.

Every such answer is a strike, and every good one takes a strike away. A client with `strikes` of them takes no part for
`quarantine` rounds and then begins anew. It is part of the server, and so of its checkpoints: a run that goes on leaves
out the same clients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Quarantine:
    """The strikes of clients, and until when some are left out."""

    strikes: Mapping[int, int] = field(default_factory=dict)
    """How many strikes each client has that has any."""
    until: Mapping[int, int] = field(default_factory=dict)
    """By client: the round, counted from 0, in which it may take part again."""

    def __bool__(self) -> bool:
        return bool(self.strikes or self.until)

    def is_out(self, client: int, round: int) -> bool:
        """Whether a client is left out of a round.

        >>> quarantine = Quarantine().after([7], round=0, strikes=1, quarantine=2)
        >>> [quarantine.is_out(7, round) for round in (1, 2, 3)]
        [True, True, False]
        """
        return round < self.until.get(client, 0)

    def why_out(self, client: int, round: int) -> str:
        """Why a client is left out of a round, or nothing."""
        return f"in quarantine until round {self.until[client]}" if self.is_out(client, round) else ""

    def after(
        self, struck: Collection[int], *, round: int, strikes: int, quarantine: int, good: Collection[int] = ()
    ) -> Quarantine:
        """The same after a round in which some clients got a strike, and other ones sent `good` updates.

        Nobody is left out where `strikes` is 0.

        >>> quarantine = Quarantine({3: 1, 4: 2}).after([4, 5], good=[3, 4], round=0, strikes=3, quarantine=2)
        >>> quarantine.strikes, quarantine.until
        ({5: 1}, {4: 3})
        """
        if not strikes:
            return self
        until = {client: end for client, end in self.until.items() if end > round + 1}
        fewer = {client for client in good if client not in struck}
        counts = {client: number - (client in fewer) for client, number in self.strikes.items()}
        counts = {client: number for client, number in counts.items() if number}
        for client in struck:
            counts[client] = counts.get(client, 0) + 1
            if counts[client] >= strikes:
                del counts[client]
                # A client that is out may still have been struck: it does not get out earlier for that.
                until[client] = max(until.get(client, 0), round + 1 + quarantine)
        return Quarantine(counts, until)

    def newly_out(self, round: int, quarantine: int) -> dict[int, int]:
        """Clients that are left out from this round on, and the number (from 1) of the last round of that.

        >>> Quarantine().after([7], round=0, strikes=1, quarantine=2).newly_out(1, 2)
        {7: 3}
        """
        return {client: end for client, end in self.until.items() if end == round + quarantine}

    def facts(self) -> dict[str, list[list[int]]]:
        """What a checkpoint says of it."""
        return {"strikes": sorted(map(list, self.strikes.items())), "until": sorted(map(list, self.until.items()))}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """What it was when a checkpoint was written.

        >>> Quarantine.of(Quarantine({3: 1}, {5: 20}).facts())
        Quarantine(strikes={3: 1}, until={5: 20})
        """
        return cls(
            dict(facts.get("strikes", ())),
            dict(facts.get("until", ())),
        )
