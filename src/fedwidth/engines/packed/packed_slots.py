"""Packed runs in slots: the clients of all runs of a lane train side by side in one pool.

The arithmetic is that of the runs one by one with the cuda engine, bit for bit: which clients train beside a client
changes nothing for it. A GPU that ten clients cannot fill has more to do at a time, and steps are captured once for
all runs of the lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from fedwidth.engines.flat.cohorts import Cohorts, Layouts
from fedwidth.engines.flat.engine import FlatEngine
from fedwidth.engines.flat.layout import Layout
from fedwidth.engines.flat.pool import wait_for_all
from fedwidth.engines.flat.tasks import FlatTask, FlatUpdate
from fedwidth.engines.memory import if_memory_allows, run_within_memory
from fedwidth.engines.packed.clients import Coming, RunRound, run_name
from fedwidth.engines.slots.pool import SlotPool
from fedwidth.training.client import Trainer
from fedwidth.training.engine import RoundResult

Begun = tuple[list[tuple[Cohorts, list[FlatTask]]], Iterator[FlatUpdate]]
"""A round that trains: the empty sums and the tasks of every run, and the updates of all of them."""


class PackedSlots:
    """Trains a round of several runs in the slots of a pool, which stays with whoever lent it."""

    def __init__(self, trainers: Sequence[Trainer], layout: Layout, pool: SlotPool) -> None:
        self.pool = pool
        self.pool.per_size = trainers[0].settings.slots * len(trainers)
        layouts = Layouts(layout)
        self._engines = {
            id(trainer): FlatEngine(trainer, self.pool, layouts, averages_here=True) for trainer in trainers
        }

    def start(self, rounds: Sequence[RunRound], coming: Coming) -> Callable[[], list[RoundResult]]:
        """Begin a round of every run; what is returned gives the sums and what the clients reported, run by run."""
        begun: list[Begun] = []
        if_memory_allows(lambda: begun.append(self._begin(rounds, coming)))

        def end() -> list[RoundResult]:
            return self._end(rounds, begun.pop() if begun else self._begin(rounds, coming))

        return lambda: run_within_memory(self.pool, end)

    def close(self) -> None:
        """Give the device's memory back, but for the pool's."""
        for engine in self._engines.values():
            engine.forget()

    def _begin(self, rounds: Sequence[RunRound], coming: Coming) -> Begun:
        """Let a round of every run train with the slots there are."""
        engines = [self._engines[id(round.trainer)] for round in rounds]
        started = [engine.start_round(r.state, r.tasks, r.round) for engine, r in zip(engines, rounds, strict=True)]
        of_all = [replace(each, run=run_name(each.trainer)) for _, flat_tasks in started for each in flat_tasks]
        training = {id(round.trainer) for round in rounds}  # of runs that are equal so far, one
        return started, self.pool.train(of_all, lambda: self._work_ahead(coming, training))

    def _end(self, rounds: Sequence[RunRound], begun: Begun) -> list[RoundResult]:
        """Wait for a round that has begun, and add its updates up."""
        started, trained = begun
        found = []
        for round in rounds:
            engine = self._engines[id(round.trainer)]
            sums, flat_tasks = started.pop(0)  # let go of, once it is averaged
            reports = engine.add_updates(sums, islice(trained, len(flat_tasks)))
            found.append((engine.finish_sums(round.state, sums), reports))
        wait_for_all(trained)
        return [(sums, reports.report()) for sums, reports in found]

    def _work_ahead(self, coming: Coming, training: set[int]) -> None:
        """Prepare the next round of every run that trains, while the device is busy."""
        next_rounds = coming()

        def prepare() -> None:
            for trainer, tasks, round in next_rounds:
                if id(trainer) in training:
                    self._engines[id(trainer)].prepare(tasks, round)

        if_memory_allows(prepare)
