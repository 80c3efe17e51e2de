"""An engine on vectors: it cuts and averages whole sub-models at once, and leaves the training to a pool.

The pool holds slots (one client each, side by side: `slots`) or stacks (clients of one size as one batch of models:
`stacks`). Updates are averaged in task order, so neither the number of slots nor the stacking changes the order of
sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.engines.faults import error_context
from fedwidth.engines.flat.cohorts import Cohorts, Cutter, Layouts
from fedwidth.engines.flat.orders import Order, draw_orders
from fedwidth.engines.flat.parts import PartCohort
from fedwidth.engines.flat.pool import Pool, wait_for_all
from fedwidth.engines.flat.sums import FlatSum, FlatSums, check_finite
from fedwidth.engines.flat.tasks import FlatTask, FlatUpdate, make_flat_tasks
from fedwidth.engines.memory import if_memory_allows, run_within_memory
from fedwidth.methods import Task
from fedwidth.training.client import Trainer, weigh_client
from fedwidth.training.engine import Coming, Engine, Report, RoundRequest, RoundResult


@dataclass(frozen=True)
class Prepared:
    """What was prepared for a coming round: all that it needs and that does not depend on the state."""

    key: object
    """The clients and their sub-models it was prepared for, see `_key_of`."""
    round: int
    sums: Cohorts
    orders: list[Order]


@dataclass
class ClientReports:
    """What the clients of a round reported so far; losses may still be under way on the device."""

    passes: list[int] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    kept: dict[int, dict[str, dict[str, Tensor]]] = field(default_factory=dict)
    """What clients keep for themselves, by client, name and tensor."""

    def report(self) -> Report:
        """The report of the round; waits for the losses."""
        return Report(tuple(self.passes), tuple(torch.stack(self.losses).tolist()), kept=self.kept)


class FlatEngine(Engine):
    """Trains the clients of a round with a pool."""

    def __init__(
        self, trainer: Trainer, pool: Pool, layouts: Layouts | None = None, *, averages_here: bool = False
    ) -> None:
        self.trainer, self.pool = trainer, pool
        self.averages_here = averages_here
        """Whether the sums of a round are averaged next and in this process: that can be queued beforehand."""
        self.cutter = Cutter(trainer, pool, layouts)
        self._prepared: Prepared | None = None

    def train_round(self, request: RoundRequest) -> RoundResult:
        """Cut the sub-models, train them, and add the updates in task order."""

        def work() -> RoundResult:
            sums, flat_tasks = self.start_round(request.state, request.tasks, request.round)
            trained = self.pool.train(flat_tasks, lambda: self._work_ahead(request.coming))
            reports = self.add_updates(sums, islice(trained, len(flat_tasks)))
            del flat_tasks  # their sub-models are gone before averaging begins
            self._check_room(sums)
            finished = self.finish_sums(request.state, sums)
            wait_for_all(trained)
            return finished, reports.report()

        return run_within_memory(self.pool, work)

    def start_round(
        self, state: Mapping[str, Tensor], tasks: Sequence[Task], round: int
    ) -> tuple[Cohorts, list[FlatTask]]:
        """The round's sums, which are still empty, and its flat tasks."""
        flat = self.cutter.flatten(state)
        sums, orders = self._take_prepared(tasks, round)
        starts: dict[str, tuple[Tensor, dict[str, Tensor]]] = {}
        for task in tasks:
            if task.part.key not in starts:
                with error_context("cut", round, task):
                    starts[task.part.key] = self.cutter.cut(sums[task.cohort], state, flat)
        subs = [sums[task.cohort].sub for task in tasks]
        cuts = [starts[task.part.key] for task in tasks]
        flat_tasks = make_flat_tasks(self.trainer, tasks, subs, cuts, orders=orders, round=round)
        if self.trainer.rule.local.before is not None:
            flat_tasks = [self._taught(each) for each in flat_tasks]
        return sums, self.cutter.with_sent(flat_tasks, sums)

    def _taught(self, flat_task: FlatTask) -> FlatTask:
        """The task of a client after its rule's lesson, which it takes alone: others may begin with the same part."""
        sub, others, trainer = flat_task.sub, flat_task.others, self.trainer
        with error_context("train", flat_task.round, flat_task.task):
            start = {**sub.views(flat_task.start), **others}
            pass_, tensors = trainer.place(start, flat_task.task, flat_task.round)
            seen = trainer.lesson(pass_)
            vector = sub.vector(tensors, trainer.device)
            changed = {name: tensors[name].detach().clone() for name in others}
        return replace(flat_task, start=vector, others=changed, seen=seen)

    def finish_sums(self, state: Mapping[str, Tensor], sums: Cohorts) -> Sequence[CohortSum]:
        """The sums as the round hands them on; where they are averaged here, that is queued behind the training now."""
        layout = self.cutter.layouts.full
        assert layout is not None
        slices = [cohort for cohort in sums.values() if isinstance(cohort, FlatSum)]
        if len(slices) < len(sums):
            return [cohort.sum if isinstance(cohort, PartCohort) else cohort for cohort in sums.values()]
        found = FlatSums(slices, layout)
        if self.averages_here:
            found.average_beforehand(state)
        return found

    def add_updates(self, sums: Cohorts, trained: Iterator[FlatUpdate]) -> ClientReports:
        """Add the updates to the sums as they come, and collect what the clients report."""
        reports = ClientReports()
        for update in trained:
            flat_task = update.flat_task
            task, order = flat_task.task, flat_task.order
            with error_context("add", flat_task.round, task):
                kept = self._add(sums[task.cohort], update)
            if kept:
                reports.kept[task.client] = kept
            reports.passes.append(flat_task.seen + sum(order.lengths))
            reports.losses.append(update.loss_sum / order.steps)
            if update.reports:
                vectors = list(update.reports.values())
                check_finite(vectors, [flat_task.sub] * len(vectors), [task.client] * len(vectors))
            own = {name: update.reports[name] for name in self.trainer.rule.local.own if name in update.reports}
            if own:
                names = self.trainer.trained
                reports.kept[task.client] = {
                    name: {n: t for n, t in flat_task.sub.views(vector.cpu()).items() if n in names}
                    for name, vector in own.items()
                }
        return reports

    def close(self) -> None:
        """Give the device's memory back."""
        self.pool.close()
        self.forget()

    def forget(self) -> None:
        """Let go of all that lies on the device beside the pool."""
        self._prepared = None
        self.cutter.clear()

    def prepare(self, tasks: Sequence[Task], round: int) -> None:
        """Prepare a coming round: neither the positions of its sub-models nor the orders of samples need a state."""
        orders = draw_orders(self.trainer, tasks, round)
        self._prepared = Prepared(_key_of(tasks), round, self.cutter.cohorts(tasks, round), orders)
        self.pool.prepare(self.trainer, orders)  # last: what needs the most memory may be left out

    def _work_ahead(self, coming: Coming | None) -> None:
        """Prepare the coming round, if it is known already and the device has memory for it."""
        found = coming() if coming is not None else None
        if found is not None:
            tasks, round = found
            if_memory_allows(lambda: self.prepare(tasks, round))

    def _take_prepared(self, tasks: Sequence[Task], round: int) -> tuple[Cohorts, list[Order]]:
        """The round's empty sums and its clients' orders, made beforehand or now."""
        ready, self._prepared = self._prepared, None
        if ready is not None and ready.round == round and ready.key == _key_of(tasks):
            return ready.sums, ready.orders
        return self.cutter.cohorts(tasks, round), draw_orders(self.trainer, tasks, round)

    def _check_room(self, sums: Cohorts) -> None:
        """Find out, while a smaller pool could help, whether averaging has memory for a state, weights and a cohort."""
        layout = self.cutter.layouts.full
        if self.trainer.device.type == "cuda" and layout is not None and self.pool.can_shrink:
            each = layout.dtype.itemsize + torch.float64.itemsize
            rooms = (cohort.room for cohort in sums.values() if isinstance(cohort, FlatSum))
            needed = layout.size * each + max(rooms, default=0)
            torch.empty(needed, dtype=torch.uint8, device=self.trainer.device)

    def _add(self, cohort: FlatSum | PartCohort, update: FlatUpdate) -> dict[str, dict[str, Tensor]]:
        """Add a client's update to its cohort, with the client's weight; returns the model, where it stays with the
        client."""
        trainer, flat_task = self.trainer, update.flat_task
        weight, labels = weigh_client(trainer, flat_task.task, flat_task.order.steps)
        if isinstance(cohort, PartCohort) and trainer.rule.local.answers is not None:
            pass_, _ = trainer.place(cohort.tensors(update), flat_task.task, flat_task.round)
            sent, kept = trainer.answer(pass_, weight)
            cohort.sum.add(sent)
            return kept
        if isinstance(cohort, PartCohort):
            cohort.add(update, weight, labels)
            return {}
        counted = flat_task.order.counted
        cohort.add_flat(update.flat, weight, None if counted is None else counted[cohort.sub.classes])
        cohort.add_others(update.others, weight)
        cohort.add_reports({name: update.reports[name] for name in trainer.rule.local.adds if name in update.reports})
        return {}


def _key_of(tasks: Sequence[Task]) -> object:
    """Clients, capacities and cohorts of a round: what was prepared for it serves any round that has the same ones."""
    return [(task.client, task.capacity, task.cohort) for task in tasks]
