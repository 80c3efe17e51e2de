"""An engine on vectors: cuts and averages whole sub-models at once, and leaves training to a crew.

A crew is a pool of slots (one client each, side by side: `slots`) or of stacks (clients of one size as one batch of
models: `stacks`). Updates are averaged in task order, so neither the number of slots nor the stacking changes the
order of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import Tensor

from fedwidth.aggregation import CohortSum, weigh
from fedwidth.client import Trainer
from fedwidth.engines.crew import Crew, fitting, if_it_fits, settle
from fedwidth.engines.faults import named
from fedwidth.engines.flat import FlatState, Layout, SubLayout, send
from fedwidth.engines.flat_sums import FlatSum, average_beforehand
from fedwidth.engines.jobs import Done, Job, Order, Size, make_jobs, orders_of, size_of
from fedwidth.engines.limits import changing
from fedwidth.index import Index
from fedwidth.methods import Task
from fedwidth.methods.definition import average
from fedwidth.rounds import Report
from fedwidth.submodel import take


@dataclass(frozen=True)
class Prepared:
    """What a round needs that does not depend on the state."""

    tasks: Sequence[Task]
    round: int
    sums: dict[str, FlatSum]
    orders: list[Order]


@dataclass
class Answers:
    """What the clients of a round answered; losses may still be under way on the device."""

    passes: list[int] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)

    def report(self) -> Report:
        """Wait for the losses."""
        return Report(tuple(self.passes), tuple(torch.stack(self.losses).tolist()))


@dataclass
class Shapes:
    """How the vectors of a model and its sub-models are laid out; runs of one model may share it."""

    layout: Layout | None = None
    subs: dict[Size, SubLayout] = field(default_factory=dict)


class FlatEngine:
    """Trains the clients of a round with a crew."""

    def __init__(self, trainer: Trainer, crew: Crew, shapes: Shapes | None = None, *, averages: bool = False) -> None:
        self.trainer, self.crew = trainer, crew
        self.averages = averages and trainer.method.aggregate_with is average
        """Whether the sums of a round are averaged next, and by averaging alone: that can be queued beforehand."""
        self.shapes = shapes or Shapes()
        self.ahead: Callable[[], tuple[Sequence[Task], int] | None] = lambda: None
        """The next round's tasks and its number: asked for while the device trains this one's."""
        self._prepared: Prepared | None = None
        crew.meanwhile = self._work_ahead
        self._changing: list[str] | None = None
        self._where: dict[str, Tensor] = {}

    def run(self, state: Mapping[str, Tensor], tasks: Sequence[Task], round: int) -> tuple[list[CohortSum], Report]:
        """Cut, train, add in task order."""

        def work() -> tuple[list[CohortSum], Report]:
            sums, jobs = self.begin(state, tasks, round)
            trained = self.crew.train(jobs)
            answers = self.add(sums, islice(trained, len(jobs)))
            del jobs  # their sub-models are gone before averaging begins
            self._make_room(sums.values())
            if self.averages:
                average_beforehand(state, list(sums.values()))
            settle(trained)
            return list(sums.values()), answers.report()

        return fitting(self.crew, work)

    def begin(
        self, state: Mapping[str, Tensor], tasks: Sequence[Task], round: int
    ) -> tuple[dict[str, FlatSum], list[Job]]:
        """The round's empty sums and its jobs."""
        flat = self._flatten(state)
        sums, orders = self._take_prepared(tasks, round)
        starts = {key: torch.index_select(flat.flat, 0, cohort.where) for key, cohort in sums.items()}
        subs = [self.shapes.subs[size_of(task)] for task in tasks]
        cuts = [starts[task.index.key] for task in tasks]
        jobs = make_jobs(self.trainer, tasks, subs, cuts, orders=orders, round=round)
        if self._changing:
            jobs = [replace(job, others=self._cut_others(flat, job.task.index)) for job in jobs]
        return sums, jobs

    def add(self, sums: dict[str, FlatSum], trained: Iterator[Done]) -> Answers:
        """Add the trained clients to the sums as they come."""
        answers = Answers()
        for done in trained:
            steps = len(done.job.order.lengths)
            with named("add", done.job.round, done.job.task):
                self._add(sums[done.job.task.index.key], done, steps)
            answers.passes.append(sum(done.job.order.lengths))
            answers.losses.append(done.loss_sum / steps)
        if self.trainer.method.aggregate_with is not average:
            for cohort in sums.values():
                cohort.open()
        return answers

    def close(self) -> None:
        """Give the device's memory back."""
        self.crew.close()
        self._prepared = None
        self.shapes.subs.clear()
        self._where.clear()

    def prepare(self, tasks: Sequence[Task], round: int) -> None:
        """Prepare a round to come: neither the positions of its sub-models nor the orders of samples need a state."""
        orders = orders_of(self.trainer, tasks, round)
        self._prepared = Prepared(tasks, round, self._make_sums(tasks, round), orders)
        self.crew.gather(self.trainer, orders)  # last: what needs the most memory may be left out

    def _work_ahead(self) -> None:
        coming = self.ahead()
        if coming is not None:
            tasks, round = coming
            if_it_fits(lambda: self.prepare(tasks, round))

    def _take_prepared(self, tasks: Sequence[Task], round: int) -> tuple[dict[str, FlatSum], list[Order]]:
        """The round's empty sums and its clients' orders, made beforehand or now."""
        ready, self._prepared = self._prepared, None
        if ready is not None and ready.round == round and ready.tasks is tasks:
            return ready.sums, ready.orders
        return self._make_sums(tasks, round), orders_of(self.trainer, tasks, round)

    def _make_room(self, sums: Iterable[FlatSum]) -> None:
        """Find out, while a smaller crew could help, whether averaging has memory: state, weights, a cohort."""
        layout = self.shapes.layout
        if self.trainer.device.type == "cuda" and layout is not None and self.crew.can_shrink:
            each = layout.dtype.itemsize + torch.float64.itemsize
            needed = layout.size * each + max(cohort.room for cohort in sums)
            torch.empty(needed, dtype=torch.uint8, device=self.trainer.device)

    def _flatten(self, state: Mapping[str, Tensor]) -> FlatState:
        if self.shapes.layout is None:
            self.shapes.layout = Layout(self.trainer.plan, state, next(self.trainer.model.parameters()).dtype)
        if self._changing is None:
            self._changing = changing(self.trainer.model, self.shapes.layout.others)
        return self.shapes.layout.flatten(state)

    def _cut_others(self, state: FlatState, index: Index) -> dict[str, Tensor]:
        """The sub-model's tensors that training may change and that are not in the vector."""
        return {name: take(state.others[name], index, name) for name in self._changing or ()}

    def _make_sums(self, tasks: Sequence[Task], round: int) -> dict[str, FlatSum]:
        """An empty sum per index, with the positions it holds."""
        assert self.shapes.layout is not None
        sums: dict[str, FlatSum] = {}
        for task in tasks:
            index, size = task.index, size_of(task)
            with named("cut", round, task):
                if size not in self.shapes.subs:
                    last = self.crew.channels_last(index)
                    self.shapes.subs[size] = SubLayout(
                        self.shapes.layout, index, self.trainer.device, channels_last=last
                    )
                if index.key not in sums:
                    known = self._where.get(index.key)
                    where = known if known is not None else self.shapes.subs[size].where(index)
                    sums[index.key] = FlatSum(index, self.shapes.subs[size], where)
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
        """For every labelled element of the sub-model: 0 if it belongs to a class the client lacks, else 1."""
        table = torch.zeros(self.trainer.data.classes, dtype=torch.float64)
        table[labels] = 1.0
        return send(table, self.trainer.device)[self.shapes.subs[size].classes]
