"""Packed runs side by side: the clients of all runs train in one crew of slots.

The arithmetic is that of the runs one by one with the cuda engine, bit for bit: which clients train beside a client
changes nothing for it. A GPU that ten clients cannot fill has more to do at a time, and steps are captured once for
all runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from fedwidth.core.cohort import CohortSum
from fedwidth.engines.flat.engine import FlatEngine, Shapes
from fedwidth.engines.flat.layout import Layout
from fedwidth.engines.flat.trainers import fitting, if_it_fits, settle
from fedwidth.engines.packed.clients import Coming, RunRound, name_of
from fedwidth.engines.slots.pool import Slots
from fedwidth.training.client import Trainer
from fedwidth.training.rounds import Report


class SlotPack:
    """Trains a round of several runs in slots."""

    def __init__(self, trainers: Sequence[Trainer], layout: Layout) -> None:
        self.crew = Slots(trainers[0])
        self.crew.per_size *= len(trainers)
        shapes = Shapes(layout)
        self._engines = {id(trainer): FlatEngine(trainer, self.crew, shapes, averages=True) for trainer in trainers}

    def train(self, parts: Sequence[RunRound], coming: Coming) -> list[tuple[Sequence[CohortSum], Report]]:
        """The sums and what the clients reported, run by run."""
        return fitting(self.crew, lambda: self._train(parts, coming))

    def close(self) -> None:
        """Give the device's memory back."""
        for engine in self._engines.values():
            engine.close()

    def _train(self, parts: Sequence[RunRound], coming: Coming) -> list[tuple[Sequence[CohortSum], Report]]:
        engines = [self._engines[id(part.trainer)] for part in parts]
        begun = [engine.begin(p.state, p.tasks, p.round) for engine, p in zip(engines, parts, strict=True)]
        jobs_of_all = [replace(job, run=name_of(job.trainer)) for _, jobs in begun for job in jobs]
        at_work = {id(part.trainer) for part in parts}  # of runs that are equal so far, one
        trained = self.crew.train(jobs_of_all, lambda: self._work_ahead(coming, at_work))
        found = []
        for engine, part in zip(engines, parts, strict=True):
            empty, jobs = begun.pop(0)  # let go of, once it is averaged
            answers = engine.add(empty, islice(trained, len(jobs)))
            found.append((engine.averaged(part.state, empty), answers))
        settle(trained)
        return [(sums, answers.report()) for sums, answers in found]

    def _work_ahead(self, coming: Coming, at_work: set[int]) -> None:
        """Prepare the next round of every run while the device trains."""
        next_rounds = coming()

        def prepare() -> None:
            for trainer, tasks, round in next_rounds:
                if id(trainer) in at_work:
                    self._engines[id(trainer)].prepare(tasks, round)

        if_it_fits(prepare)
