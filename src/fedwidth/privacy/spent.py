"""What a run has opened so far: all that its epsilon follows from, and that a checkpoint must not forget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Spent:
    """The rounds that were opened, repeated ones counted again, and how often each client was drawn for one."""

    rounds: int = 0
    drawn: Mapping[int, int] = field(default_factory=dict)

    def after(self, clients: Iterable[int]) -> Spent:
        """The same after one more round is opened, for which these clients were drawn.

        >>> Spent().after([3, 4]).after([4])
        Spent(rounds=2, drawn={3: 1, 4: 2})
        """
        drawn = dict(self.drawn)
        for client in clients:
            drawn[client] = drawn.get(client, 0) + 1
        return Spent(self.rounds + 1, drawn)

    def most(self, other: Spent) -> Spent:
        """The larger one of two counts of one run: of its checkpoint, and of the file that is ahead of it.

        >>> Spent(2, {3: 1}).most(Spent(3, {3: 1, 4: 1}))
        Spent(rounds=3, drawn={3: 1, 4: 1})
        """
        clients = sorted({*self.drawn, *other.drawn})
        drawn = {client: max(self.drawn.get(client, 0), other.drawn.get(client, 0)) for client in clients}
        return Spent(max(self.rounds, other.rounds), drawn)

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of it."""
        return {"rounds": self.rounds, "drawn": sorted(map(list, self.drawn.items()))}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """What it was when a checkpoint was written.

        >>> Spent.of(Spent(2, {3: 1}).facts())
        Spent(rounds=2, drawn={3: 1})
        """
        return cls(int(facts.get("rounds", 0)), {int(client): int(times) for client, times in facts.get("drawn", ())})
