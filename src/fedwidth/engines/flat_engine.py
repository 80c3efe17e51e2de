"""An engine on vectors: cuts and averages whole sub-models at once, and leaves training to a crew.

A crew is a pool of slots (one client each, side by side: `slots`) or of stacks (clients of one size as one batch of
models: `stacks`). Updates are averaged in task order, so neither the number of slots nor the stacking changes the
order of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fedwidth.aggregation import CohortSum, weigh
from fedwidth.client import Trainer
from fedwidth.engines.faults import named, out_of_memory
from fedwidth.engines.flat import FlatState, Layout, SubLayout, send
from fedwidth.engines.flat_sums import FlatSum
from fedwidth.engines.jobs import Done, Job, Order, Size, make_jobs, orders_of, size_of
from fedwidth.engines.limits import changing
from fedwidth.index import Index
from fedwidth.methods import Task
from fedwidth.methods.definition import average
from fedwidth.rounds import Report
from fedwidth.submodel import take


class Crew(Protocol):
    """Trains jobs."""

    channels_last: Callable[[Index], bool]
    """Whether the channels of convolutions lie last in the memory of sub-models of this size."""
    meanwhile: Callable[[], None]
    """To be called once in a round, while the device is busy."""

    @property
    def can_shrink(self) -> bool:
        """Whether it can do with less memory."""

    def train(self, jobs: Sequence[Job]) -> Iterator[Done]:
        """Train every job; they come back in the order given."""

    def shrink(self) -> None:
        """Give memory back, and do with less from now on."""

    def close(self) -> None:
        """Give memory and threads back."""


@dataclass(frozen=True)
class Prepared:
    """What a round needs that does not depend on the state."""

    tasks: Sequence[Task]
    round: int
    sums: dict[str, FlatSum]
    orders: list[Order]


class FlatEngine:
    """Trains the clients of a round with a crew."""

    def __init__(self, trainer: Trainer, crew: Crew) -> None:
        self.trainer, self.crew = trainer, crew
        self.ahead: Callable[[], tuple[Sequence[Task], int] | None] = lambda: None
        """The next round's tasks and its number: asked for while the device trains this one's."""
        self._prepared: Prepared | None = None
        crew.meanwhile = self._work_ahead
        self._layout: Layout | None = None
        self._changing: list[str] = []
        self._subs: dict[Size, SubLayout] = {}
        self._labels: dict[Size, Tensor] = {}
        self._where: dict[str, Tensor] = {}

    def run(self, state: Mapping[str, Tensor], tasks: Sequence[Task], round: int) -> tuple[list[CohortSum], Report]:
        """Cut, train, add in task order.

        A crew copes with too little memory while it trains. If there is none left for what comes before or after, the
        round begins again with a smaller crew: nothing of it counts yet.
        """
        while True:
            try:
                sums, jobs = self.begin(state, tasks, round)
                done = self.finish(sums, self.crew.train(jobs))
                self._make_room()
                return done
            except Exception as error:
                if not out_of_memory(error) or not self.crew.can_shrink:
                    raise
            # Only here is the exception gone, and with it the tensors it held.
            self.crew.shrink()

    def begin(
        self, state: Mapping[str, Tensor], tasks: Sequence[Task], round: int
    ) -> tuple[dict[str, FlatSum], list[Job]]:
        """The round's empty sums and its jobs."""
        flat = self._flatten(state)
        sums, orders = self._prepare(tasks, round)
        starts = {key: torch.index_select(flat.flat, 0, cohort.where) for key, cohort in sums.items()}
        subs = [self._subs[size_of(task)] for task in tasks]
        cuts = [starts[task.index.key] for task in tasks]
        jobs = make_jobs(self.trainer, tasks, subs, cuts, orders=orders, round=round)
        if self._changing:
            jobs = [replace(job, others=self._cut_others(flat, job.task.index)) for job in jobs]
        return sums, jobs

    def finish(self, sums: dict[str, FlatSum], trained: Iterator[Done]) -> tuple[list[CohortSum], Report]:
        """Add the trained clients to the sums as they come."""
        passes: list[int] = []
        losses: list[Tensor] = []
        for done in trained:
            steps = len(done.job.order)
            with named("add", done.job.round, done.job.task):
                self._add(sums[done.job.task.index.key], done, steps)
            passes.append(sum(done.job.lengths))
            losses.append(done.loss_sum / steps)
        if self.trainer.method.aggregate_with is not average:
            for cohort in sums.values():
                cohort.open()
        return list(sums.values()), Report(tuple(passes), tuple(torch.stack(losses).tolist()))

    def close(self) -> None:
        """Give the device's memory back."""
        self.crew.close()
        for held in (self._subs, self._labels, self._where):
            held.clear()

    def _work_ahead(self) -> None:
        """Prepare the next round: neither the positions its sub-models hold nor the orders need the state."""
        coming = self.ahead()
        if coming is not None:
            tasks, round = coming
            self._prepared = Prepared(
                tasks, round, self._make_sums(tasks, round), orders_of(self.trainer, tasks, round)
            )

    def _prepare(self, tasks: Sequence[Task], round: int) -> tuple[dict[str, FlatSum], list[Order]]:
        """The round's empty sums and its clients' orders, made beforehand or now."""
        ready, self._prepared = self._prepared, None
        if ready is not None and ready.round == round and ready.tasks is tasks:
            return ready.sums, ready.orders
        return self._make_sums(tasks, round), orders_of(self.trainer, tasks, round)

    def _make_room(self) -> None:
        """Find out now whether there is memory for averaging: a new state, weights, and the parts of a cohort."""
        if self.trainer.device.type == "cuda" and self._layout is not None:
            bytes_each = 3 * self._layout.dtype.itemsize + 3 * torch.float64.itemsize
            torch.empty(self._layout.size * bytes_each, dtype=torch.uint8, device=self.trainer.device)

    def _flatten(self, state: Mapping[str, Tensor]) -> FlatState:
        if self._layout is None:
            self._layout = Layout(self.trainer.plan, state, next(self.trainer.model.parameters()).dtype)
            self._changing = changing(self.trainer.model, self._layout.others)
        return self._layout.flatten(state)

    def _cut_others(self, state: FlatState, index: Index) -> dict[str, Tensor]:
        """The sub-model's tensors that training may change and that are not in the vector."""
        return {name: take(state.others[name], index, name) for name in self._changing}

    def _make_sums(self, tasks: Sequence[Task], round: int) -> dict[str, FlatSum]:
        """An empty sum per index, with the positions it holds."""
        assert self._layout is not None
        sums: dict[str, FlatSum] = {}
        for task in tasks:
            index, size = task.index, size_of(task)
            with named("cut", round, task):
                if size not in self._subs:
                    last = self.crew.channels_last(index)
                    self._subs[size] = SubLayout(self._layout, index, self.trainer.device, channels_last=last)
                if index.key not in sums:
                    known = self._where.get(index.key)
                    where = known if known is not None else self._subs[size].where(index)
                    sums[index.key] = FlatSum(index, self._subs[size], where)
        self._where = {key: cohort.where for key, cohort in sums.items()}  # kept for methods whose windows stay
        return sums

    def _add(self, cohort: FlatSum, done: Done, steps: int) -> None:
        """Add a trained client to its cohort."""
        trainer, settings, task = self.trainer, self.trainer.settings, done.job.task
        samples = len(trainer.partition[task.client])
        weight = weigh(settings.server.weighting, samples=samples, index=task.index, updates=steps)
        rows = None
        if settings.server.label_rows and trainer.plan.label_axes:
            labels = trainer.partition.labels[task.client]
            if len(labels) < trainer.data.classes:
                rows = self._rows(done.job.size, labels)
        cohort.add_flat(done.flat, weight, rows)
        cohort.add_others(done.others, weight)

    def _rows(self, size: Size, labels: Tensor) -> Tensor:
        """1 for every element of the sub-model, 0 for those that belong to a class the client lacks."""
        classes = self.trainer.data.classes
        if size not in self._labels:
            self._labels[size] = self._subs[size].labels(classes)
        table = torch.zeros(classes + 1, dtype=torch.float64)
        table[labels] = 1.0
        table[classes] = 1.0
        return send(table, self.trainer.device)[self._labels[size]]
