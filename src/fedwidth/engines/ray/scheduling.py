"""Which worker gets which chunk: the one that will be free first gets the longest that waits.

That is list scheduling in order of falling cost. With m workers and costs as estimated, a round takes at most
4/3 - 1/(3m) times what the best placement would take (Graham, Bounds on multiprocessing timing anomalies, 1969).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedwidth.engines.ray.chunks import Chunk
from fedwidth.engines.ray.messages import WorkerInfo

MAX_HELD = 2
"""The number of chunks that a worker holds, so that it need not wait for the next one."""

Seconds = Callable[[Chunk], float]
"""Says how long a chunk is expected to take."""


@dataclass
class Costs:
    """The seconds that a training sample takes, by capacity, learnt from what chunks took.

    >>> costs = Costs()
    >>> costs.estimate({0.5: 10})  # nothing measured yet: work grows with the square of the width
    2.5
    >>> costs.learn({1.0: 10}, seconds=0.2)
    >>> round(costs.estimate({0.5: 10}), 3)
    0.05
    """

    measured: dict[float, float] = field(default_factory=dict)

    def estimate(self, samples: Mapping[float, int]) -> float:
        """The seconds that so many samples of each capacity will take."""
        return sum(number * self._rate(capacity) for capacity, number in samples.items())

    def learn(self, samples: Mapping[float, int], seconds: float) -> None:
        """Take in what so many samples of each capacity took; older measurements fade."""
        expected = self.estimate(samples)
        rates = {capacity: self._rate(capacity) for capacity in samples}
        for capacity, rate in rates.items():
            found = rate * seconds / expected
            self.measured[capacity] = (self.measured.get(capacity, found) + found) / 2

    def _rate(self, capacity: float) -> float:
        """The seconds that a sample of this capacity takes, from the nearest capacity that was measured."""
        if not self.measured:
            return capacity**2
        nearest = min(self.measured, key=lambda known: abs(math.log(known / capacity)))
        return self.measured[nearest] * (capacity / nearest) ** 2


@dataclass(eq=False)
class WorkerHandle:
    """The driver's side of a worker: Ray's handle, and the results the worker owes."""

    actor: Any
    ready: Any
    """The reference of the answer to `prepare`, while it is awaited."""
    info: WorkerInfo | None = None
    """What the worker said of itself, once it is ready."""
    held: dict[Any, Chunk] = field(default_factory=dict)
    """The chunks it has, in the order it trains them, by the reference of the result."""
    warm: bool = False
    """Whether it has trained before; the first chunk also loads code."""
    busy: float = 0.0
    """The seconds it has trained in this round."""
    clock: Callable[[], float] = time.monotonic
    since: float = 0.0
    """The time when it began with the first chunk it holds."""

    def take(self, reference: Any, chunk: Chunk) -> None:
        """Note that the worker was sent a chunk."""
        if not self.held:
            self.since = self.clock()
        self.held[reference] = chunk

    def give(self, reference: Any) -> Chunk:
        """Note that the worker has answered, and goes on with the next chunk; returns the one it answered."""
        self.since = self.clock()
        return self.held.pop(reference)

    def left(self, seconds: Seconds) -> float:
        """The seconds until the worker has done all it holds; of its first chunk, what is left of it."""
        expected = [seconds(chunk) for chunk in self.held.values()]
        return max(expected[0] - (self.clock() - self.since), 0.0) + sum(expected[1:]) if expected else 0.0


def schedule(
    workers: Sequence[WorkerHandle], waiting: list[Chunk], seconds: Seconds
) -> Iterator[tuple[WorkerHandle, Chunk]]:
    """Chunks to send now, in the order they wait, each with the worker that will be free first.

    It ends when that worker holds enough. The caller gives the worker what it gets before it asks for the next pair.
    """
    ready = [worker for worker in workers if worker.info is not None]
    while waiting and ready:
        first = min(ready, key=lambda worker: worker.left(seconds))
        if len(first.held) >= MAX_HELD:
            return
        yield first, waiting.pop(0)
