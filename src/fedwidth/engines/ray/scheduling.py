"""Which worker gets which parcel: the one that will be free first gets the longest that waits.

That is list scheduling in order of falling cost. With m workers and costs as estimated, a round takes at most
4/3 - 1/(3m) times what the best placement would take (Graham, Bounds on multiprocessing timing anomalies, 1969).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedwidth.engines.ray.parcels import Parcel
from fedwidth.engines.ray.records import About

AHEAD = 2
"""Parcels a worker holds, so that it need not wait for the next one."""

Seconds = Callable[[Parcel], float]
"""What a parcel is expected to take."""


@dataclass(eq=False)
class Hand:
    """The driver's side of a worker: Ray's handle, and the answers it owes."""

    actor: Any
    ready: Any
    """The answer to `prepare`, while it is awaited."""
    about: About | None = None
    held: dict[Any, Parcel] = field(default_factory=dict)
    """Parcels it has, in the order it trains them, by the reference of the answer."""
    warm: bool = False
    """Whether it has trained before; the first parcel also loads code."""
    busy: float = 0.0
    """Seconds it trained in this round."""
    clock: Callable[[], float] = time.monotonic
    since: float = 0.0
    """When it began with the first parcel it holds."""

    def take(self, ref: Any, parcel: Parcel) -> None:
        """It was sent a parcel."""
        if not self.held:
            self.since = self.clock()
        self.held[ref] = parcel

    def give(self, ref: Any) -> Parcel:
        """It has answered, and goes on with the next one."""
        self.since = self.clock()
        return self.held.pop(ref)

    def left(self, seconds: Seconds) -> float:
        """Seconds until it has done all it holds: of the parcel at hand, what is left of it."""
        expected = [seconds(parcel) for parcel in self.held.values()]
        return max(expected[0] - (self.clock() - self.since), 0.0) + sum(expected[1:]) if expected else 0.0


def choose(hands: Sequence[Hand], waiting: list[Parcel], seconds: Seconds) -> Iterator[tuple[Hand, Parcel]]:
    """Parcels to send now, in the order they wait, each to the worker that will be free first, unless it has enough.

    The caller gives the worker what it gets before it asks for the next.
    """
    ready = [hand for hand in hands if hand.about is not None]
    while waiting and ready:
        hand = min(ready, key=lambda hand: hand.left(seconds))
        if len(hand.held) >= AHEAD:
            return
        yield hand, waiting.pop(0)
