"""Packed runs side by side: the clients of all runs train in one crew of slots.

The arithmetic is that of the runs one by one with the cuda engine, bit for bit: which clients train beside a client
changes nothing for it. A GPU that ten clients cannot fill has more to do at a time, and steps are captured once for
all runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

from torch import Tensor

from fedwidth.client import Trainer
from fedwidth.engines.crew import fitting, if_it_fits, settle
from fedwidth.engines.flat import FlatState, Layout
from fedwidth.engines.flat_engine import FlatEngine, Shapes
from fedwidth.engines.packed_clients import Coming, Part, name_of
from fedwidth.engines.slots import Slots
from fedwidth.rounds import Report


class SlotPack:
    """Trains a round of several runs in slots."""

    def __init__(
        self,
        trainers: Sequence[Trainer],
        layout: Layout,
        ahead: Callable[[], Coming],
    ) -> None:
        self.crew = Slots(trainers[0])
        self.crew.per_size *= len(trainers)
        shapes = Shapes(layout)
        self._engines = {id(trainer): FlatEngine(trainer, self.crew, shapes) for trainer in trainers}
        self.crew.meanwhile = self._work_ahead
        self._ahead = ahead
        self._at_work: set[int] = set()
        """Whose clients train in this round: of runs that are equal so far, one."""

    def train(self, parts: Sequence[Part]) -> list[tuple[FlatState | dict[str, Tensor], Report]]:
        """The averaged states and what the clients reported."""
        return fitting(self.crew, lambda: self._train(parts))

    def close(self) -> None:
        """Give the device's memory back."""
        for engine in self._engines.values():
            engine.close()

    def _train(self, parts: Sequence[Part]) -> list[tuple[FlatState | dict[str, Tensor], Report]]:
        engines = [self._engines[id(part.trainer)] for part in parts]
        self._at_work = {id(part.trainer) for part in parts}
        begun = [engine.begin(p.state, p.tasks, p.round) for engine, p in zip(engines, parts, strict=True)]
        jobs_of_all = [replace(job, run=name_of(job.trainer)) for _, jobs in begun for job in jobs]
        trained = self.crew.train(jobs_of_all)
        found = []
        for engine, part in zip(engines, parts, strict=True):
            empty, jobs = begun.pop(0)  # let go of, once it is averaged
            answers = engine.add(empty, islice(trained, len(jobs)))
            sums = list(empty.values())
            found.append((part.trainer.method.aggregate(part.state, sums, part.trainer.plan), answers))
        settle(trained)
        return [(state, answers.report()) for state, answers in found]

    def _work_ahead(self) -> None:
        """Prepare the next round of every run while the device trains."""
        coming = self._ahead()

        def prepare() -> None:
            for trainer, tasks, round in coming:
                if id(trainer) in self._at_work:
                    self._engines[id(trainer)].prepare(tasks, round)

        if_it_fits(prepare)
