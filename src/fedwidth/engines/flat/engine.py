"""An engine on vectors: cuts and averages whole sub-models at once, and leaves training to a crew.

A crew is a pool of slots (one client each, side by side: `slots`) or of stacks (clients of one size as one batch of
models: `stacks`). Updates are averaged in task order, so neither the number of slots nor the stacking changes the
order of sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.core.index import Index
from fedwidth.core.submodel import take
from fedwidth.engines.faults import named
from fedwidth.engines.flat.jobs import Done, Job, Order, Size, make_jobs, orders_of, size_of
from fedwidth.engines.flat.layout import FlatState, Layout, SubLayout, cut_sent, send
from fedwidth.engines.flat.sums import FlatSum, FlatSums, check_finite
from fedwidth.engines.flat.trainers import Crew, fitting, if_it_fits, settle
from fedwidth.engines.limits import changing
from fedwidth.methods import Task
from fedwidth.training.client import Trainer, weigh_client
from fedwidth.training.rounds import Coming, Report, Watch


@dataclass(frozen=True)
class Prepared:
    """What a round needs that does not depend on the state."""

    who: object
    """The clients and their parts, see `_who`."""
    round: int
    sums: dict[str, FlatSum]
    orders: list[Order]


@dataclass
class Answers:
    """What the clients of a round answered; losses may still be under way on the device."""

    passes: list[int] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    kept: dict[int, dict[str, dict[str, Tensor]]] = field(default_factory=dict)
    """What clients keep for themselves, by client, name and tensor."""

    def report(self) -> Report:
        """Wait for the losses."""
        return Report(tuple(self.passes), tuple(torch.stack(self.losses).tolist()), kept=self.kept)


@dataclass
class Shapes:
    """How the vectors of a model and its sub-models are laid out; runs of one model may share it."""

    layout: Layout | None = None
    subs: dict[Size, SubLayout] = field(default_factory=dict)


class FlatEngine:
    """Trains the clients of a round with a crew."""

    def __init__(self, trainer: Trainer, crew: Crew, shapes: Shapes | None = None, *, averages: bool = False) -> None:
        self.trainer, self.crew = trainer, crew
        self.averages = averages
        """Whether the sums of a round are averaged next, here: that can be queued beforehand."""
        self.shapes = shapes or Shapes()
        self._prepared: Prepared | None = None
        self._changing: list[str] | None = None
        self._where: dict[str, Tensor] = {}

    def run(
        self,
        state: Mapping[str, Tensor],
        tasks: Sequence[Task],
        round: int,
        *,
        coming: Coming | None = None,
        watch: Watch | None = None,
    ) -> tuple[Sequence[CohortSum], Report]:
        """Cut, train, add in task order."""
        del watch  # a round is short

        def work() -> tuple[Sequence[CohortSum], Report]:
            sums, jobs = self.begin(state, tasks, round)
            trained = self.crew.train(jobs, lambda: self._work_ahead(coming))
            answers = self.add(sums, islice(trained, len(jobs)))
            del jobs  # their sub-models are gone before averaging begins
            self._make_room(sums.values())
            averaged = self.averaged(state, sums)
            settle(trained)
            return averaged, answers.report()

        return fitting(self.crew, work)

    def begin(
        self, state: Mapping[str, Tensor], tasks: Sequence[Task], round: int
    ) -> tuple[dict[str, FlatSum], list[Job]]:
        """The round's empty sums and its jobs."""
        flat = self._flatten(state)
        sums, orders = self._take_prepared(tasks, round)
        starts: dict[str, Tensor] = {}
        for cohort in sums.values():
            if cohort.index.key not in starts:
                starts[cohort.index.key] = torch.index_select(flat.flat, 0, cohort.where)
        subs = [self.shapes.subs[size_of(task)] for task in tasks]
        cuts = [starts[task.index.key] for task in tasks]
        jobs = make_jobs(self.trainer, tasks, subs, cuts, orders=orders, round=round)
        if self._changing:
            jobs = [replace(job, others=self._cut_others(flat, job.task.index)) for job in jobs]
        return sums, self._with_sent(jobs, sums)

    def _with_sent(self, jobs: list[Job], sums: Mapping[str, FlatSum]) -> list[Job]:
        """The jobs with what their clients are sent beside their sub-models."""
        layout = self.shapes.layout
        if layout is None or not any(job.task.sends for job in jobs):
            return jobs
        cut: dict[object, Tensor] = {}  # what several clients of one part are sent is cut once
        found = []
        for job in jobs:
            sent = {}
            for name, value in job.task.sends.items():
                parts = map(id, value.values()) if isinstance(value, Mapping) else [value]
                key = (tuple(parts), job.task.index.key)
                if key not in cut:
                    cut[key] = cut_sent(value, layout, sums[job.task.cohort].where)
                sent[name] = cut[key]
            found.append(replace(job, sent=sent))
        return found

    def averaged(self, state: Mapping[str, Tensor], sums: dict[str, FlatSum]) -> FlatSums:
        """The sums; where they are averaged next, that is queued behind the training now."""
        assert self.shapes.layout is not None
        found = FlatSums(list(sums.values()), self.shapes.layout)
        if self.averages:
            found.average_beforehand(state)
        return found

    def add(self, sums: dict[str, FlatSum], trained: Iterator[Done]) -> Answers:
        """Add the trained clients to the sums as they come."""
        answers = Answers()
        for done in trained:
            task, order = done.job.task, done.job.order
            with named("add", done.job.round, task):
                self._add(sums[task.cohort], done)
            answers.passes.append(sum(order.lengths))
            answers.losses.append(done.loss_sum / order.steps)
            if done.reports:
                vectors = list(done.reports.values())
                check_finite(vectors, [done.job.sub] * len(vectors), [task.client] * len(vectors))
            own = {name: done.reports[name] for name in self.trainer.rule.local.own if name in done.reports}
            if own:
                names = self.trainer.trained
                answers.kept[task.client] = {
                    name: {n: t for n, t in done.job.sub.views(vector.cpu()).items() if n in names}
                    for name, vector in own.items()
                }
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
        self._prepared = Prepared(_who(tasks), round, self._make_sums(tasks, round), orders)
        self.crew.gather(self.trainer, orders)  # last: what needs the most memory may be left out

    def _work_ahead(self, coming: Coming | None) -> None:
        found = coming() if coming is not None else None
        if found is not None:
            tasks, round = found
            if_it_fits(lambda: self.prepare(tasks, round))

    def _take_prepared(self, tasks: Sequence[Task], round: int) -> tuple[dict[str, FlatSum], list[Order]]:
        """The round's empty sums and its clients' orders, made beforehand or now."""
        ready, self._prepared = self._prepared, None
        if ready is not None and ready.round == round and ready.who == _who(tasks):
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
        where: dict[str, Tensor] = {}
        for task in tasks:
            index, size = task.index, size_of(task)
            with named("cut", round, task):
                if size not in self.shapes.subs:
                    last = self.crew.channels_last(index)
                    self.shapes.subs[size] = SubLayout(
                        self.shapes.layout, index, self.trainer.device, channels_last=last
                    )
                if task.cohort not in sums:
                    known = where.get(index.key, self._where.get(index.key))
                    where[index.key] = known if known is not None else self.shapes.subs[size].where(index)
                    sums[task.cohort] = FlatSum(index, self.shapes.subs[size], where[index.key])
        self._where = where  # kept for methods whose windows stay
        return sums

    def _add(self, cohort: FlatSum, done: Done) -> None:
        """Add a trained client to its cohort."""
        trainer, task = self.trainer, done.job.task
        weight, labels = weigh_client(trainer, task, done.job.order.steps)
        rows = None
        if labels is not None and trainer.plan.label_axes and len(labels) < trainer.data.classes:
            rows = self._rows(done.job.size, labels)
        cohort.add_flat(done.flat, weight, rows)
        cohort.add_others(done.others, weight)
        cohort.add_reports({name: done.reports[name] for name in trainer.rule.local.adds if name in done.reports})

    def _rows(self, size: Size, labels: Tensor) -> Tensor:
        """For every labelled element of the sub-model: 0 if it belongs to a class the client lacks, else 1."""
        table = torch.zeros(self.trainer.data.classes, dtype=torch.float64)
        table[labels] = 1.0
        return send(table, self.trainer.device)[self.shapes.subs[size].classes]


def _who(tasks: Sequence[Task]) -> object:
    """Clients, capacities and parts: what was prepared for them serves all rounds in which these are the same."""
    return [(task.client, task.capacity, task.cohort) for task in tasks]
