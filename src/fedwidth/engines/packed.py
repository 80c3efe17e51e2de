"""Packed sweeps: many runs of one shape train as one batch on one device, so that a whole table is one job.

Every run keeps its own loop, folder and checkpoint, in a thread of its own; only the training is shared. A run that
has cut its sub-models waits until all others have too, then the clients of all of them are stacked by size and
trained together. Results are those of the runs one by one, up to the order of sums inside a stacked product.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fedwidth.client import Trainer
from fedwidth.engines.flat_engine import Crew, FlatEngine
from fedwidth.engines.jobs import Done, Job
from fedwidth.engines.slots import why_not
from fedwidth.engines.stacks import Stacks
from fedwidth.errors import OptionError

T = TypeVar("T")


class Meeting:
    """Where runs bring their jobs: the last to come trains them all."""

    def __init__(self, crew: Crew, runs: int) -> None:
        self.crew = crew
        self.runs = runs
        self._condition = threading.Condition()
        self._brought: dict[int, Sequence[Job]] = {}
        self._trained: dict[int, list[Done]] = {}
        self._error: BaseException | None = None

    def train(self, run: int, jobs: Sequence[Job]) -> list[Done]:
        """Bring the jobs of a round and wait for all of them to be trained."""
        with self._condition:
            self._brought[run] = jobs
            self._train_if_complete()
            self._condition.wait_for(lambda: run in self._trained or self._error is not None)
            if self._error is not None:
                raise self._error
            return self._trained.pop(run)

    def leave(self) -> None:
        """A run has ended, or failed: the others no longer wait for it."""
        with self._condition:
            self.runs -= 1
            self._train_if_complete()

    def _train_if_complete(self) -> None:
        if not self._brought or len(self._brought) < self.runs:
            return
        order = sorted(self._brought)  # not the order of arrival, which differs from time to time
        try:
            trained = self.crew.train([job for run in order for job in self._brought[run]])
            for run in order:
                self._trained[run] = [next(trained) for _ in self._brought[run]]
        except BaseException as error:
            self._error = error
        self._brought = {}
        self._condition.notify_all()


class Seat:
    """One run's place at the meeting: a crew like any other to its engine."""

    def __init__(self, meeting: Meeting, run: int) -> None:
        self.meeting, self.run = meeting, run
        self.channels_last = meeting.crew.channels_last

    def train(self, jobs: Sequence[Job]) -> Iterator[Done]:
        """Train together with all other runs."""
        yield from self.meeting.train(self.run, jobs)

    def close(self) -> None:
        """Leave the meeting."""
        self.meeting.leave()


def run_packed(trainers: Sequence[Trainer], run: Callable[[int, FlatEngine], T]) -> list[T]:
    """Call `run(number, engine)` for every trainer at the same time, with engines that train together.

    The runs must have one model, one data set and one way of training; seeds, methods, partitions, capacities and
    learning rates may differ.
    """
    first = trainers[0]
    for trainer in trainers:
        reason = why_not(trainer) or _differs(first, trainer)
        if reason:
            raise OptionError(f"these runs cannot train as one batch: {reason}")
    meeting = Meeting(Stacks(first), len(trainers))
    with ThreadPoolExecutor(len(trainers)) as pool:
        started = [
            pool.submit(run, number, FlatEngine(trainer, Seat(meeting, number)))
            for number, trainer in enumerate(trainers)
        ]
        return [future.result() for future in started]


def _differs(first: Trainer, other: Trainer) -> str | None:
    """What keeps two runs from sharing a stack."""
    shared = ("optimiser", "momentum", "weight_decay", "clip", "mask", "scaler", "augment", "batch_size")
    for name in shared:
        if getattr(first.settings.training, name) != getattr(other.settings.training, name):
            return f"training.{name} differs"
    if first.plan.shapes != other.plan.shapes:
        return "their models differ"
    if first.data is not other.data:
        return "they do not share one data set in memory"
    if first.device != other.device:
        return "they are on different devices"
    return None
