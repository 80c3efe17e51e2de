"""How a round is cut into parcels for Ray's workers, and what each is expected to take.

A parcel is a few tasks that one worker trains and sums. Which tasks form a parcel follows from the tasks and the inner
engine alone, never from the workers: sums of parcels are merged in the order of tasks, so neither the number of workers
nor who trained what changes a bit. A parcel of one client is that client's update as it is. So a round that is cut into
single clients is summed in exactly the order of the serial engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedwidth.methods import Task

MAX_PARCELS = {"serial": 64, "vectorised": 16, "cuda": 64}
"""Parcels a round is cut into (a few more where widths do not divide evenly); fewer where clients are stacked."""

MIN_CLIENTS = {"serial": 1, "vectorised": 8, "cuda": 4}
"""Clients in a parcel, while there are as many: those of one parcel train as one stack, or side by side on a GPU."""

Lane = tuple[tuple[str, int], ...]
"""Parcels of one lane are merged in order. Tasks with one index are always in one lane."""


@dataclass(frozen=True)
class Parcel:
    """Tasks that one worker trains and sums, by their numbers in the round."""

    number: int
    tasks: tuple[int, ...]
    lane: Lane


def divide(tasks: Sequence[Task], inner: str) -> list[Parcel]:
    """The parcels of a round, for workers with this engine inside.

    Clients of one size form a lane that is cut into parcels: its clients cost about the same, and can be stacked. On a
    GPU parcels take the tasks as they come: widths side by side fill it better.
    """
    size = max(math.ceil(len(tasks) / MAX_PARCELS[inner]), MIN_CLIENTS[inner])
    lanes: dict[Lane, list[int]] = {}
    for number, task in enumerate(tasks):
        lane = () if inner == "cuda" else tuple(task.index.counts.items())
        lanes.setdefault(lane, []).append(number)
    cut = [
        (lane, tuple(numbers[start : start + size]))
        for lane, numbers in lanes.items()
        for start in range(0, len(numbers), size)
    ]
    return [Parcel(number, numbers, lane) for number, (lane, numbers) in enumerate(cut)]


@dataclass
class Costs:
    """Seconds a training sample takes, by capacity, learnt from what parcels took.

    >>> costs = Costs()
    >>> costs.estimate({0.5: 10})  # nothing measured yet: work grows with the square of the width
    2.5
    >>> costs.learn({1.0: 10}, seconds=0.2)
    >>> round(costs.estimate({0.5: 10}), 3)
    0.05
    """

    measured: dict[float, float] = field(default_factory=dict)

    def estimate(self, samples: Mapping[float, int]) -> float:
        """Seconds for so many samples of each capacity."""
        return sum(number * self._rate(capacity) for capacity, number in samples.items())

    def learn(self, samples: Mapping[float, int], seconds: float) -> None:
        """Take in what so many samples of each capacity took; older measurements fade."""
        expected = self.estimate(samples)
        rates = {capacity: self._rate(capacity) for capacity in samples}
        for capacity, rate in rates.items():
            found = rate * seconds / expected
            self.measured[capacity] = (self.measured.get(capacity, found) + found) / 2

    def _rate(self, capacity: float) -> float:
        if not self.measured:
            return capacity**2
        nearest = min(self.measured, key=lambda known: abs(math.log(known / capacity)))
        return self.measured[nearest] * (capacity / nearest) ** 2
