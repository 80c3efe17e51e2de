"""An engine on vectors: it cuts and averages whole sub-models at once, and leaves the training to a pool.

The pool holds slots (one client each, side by side: `slots`) or stacks (clients of one size as one batch of models:
`stacks`). Updates are averaged in task order, so neither the number of slots nor the stacking changes the order of
sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.core.submodel import take
from fedwidth.engines.faults import error_context
from fedwidth.engines.flat.layout import FlatState, Layout, SubLayout, copy_to_device, cut_sent
from fedwidth.engines.flat.orders import Order, draw_orders
from fedwidth.engines.flat.pool import Pool, wait_for_all
from fedwidth.engines.flat.sums import FlatSum, FlatSums, check_finite
from fedwidth.engines.flat.tasks import FlatTask, FlatUpdate, Size, make_flat_tasks, size_of
from fedwidth.engines.flat.vectors import changed_by_training
from fedwidth.engines.memory import if_memory_allows, run_within_memory
from fedwidth.methods import Task
from fedwidth.training.client import Trainer, weigh_client
from fedwidth.training.rounds import Coming, Engine, Report, RoundRequest, RoundResult


@dataclass(frozen=True)
class Prepared:
    """What was prepared for a coming round: all that it needs and that does not depend on the state."""

    key: object
    """The clients and their sub-models it was prepared for, see `_key_of`."""
    round: int
    sums: dict[str, FlatSum]
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


@dataclass
class Layouts:
    """How the vectors of a model and of its sub-models are laid out; runs of one model may share this."""

    full: Layout | None = None
    subs: dict[Size, SubLayout] = field(default_factory=dict)


class FlatEngine(Engine):
    """Trains the clients of a round with a pool."""

    def __init__(
        self, trainer: Trainer, pool: Pool, layouts: Layouts | None = None, *, averages_here: bool = False
    ) -> None:
        self.trainer, self.pool = trainer, pool
        self.averages_here = averages_here
        """Whether the sums of a round are averaged next and in this process: that can be queued beforehand."""
        self.layouts = layouts or Layouts()
        self._prepared: Prepared | None = None
        self._changed: list[str] | None = None
        """The tensors beside the vector that training may change; None before the first round."""
        self._positions: dict[str, Tensor] = {}
        """Positions of the last round's sub-models by their index, for methods whose windows stay."""

    def train_round(self, request: RoundRequest) -> RoundResult:
        """Cut the sub-models, train them, and add the updates in task order."""

        def work() -> RoundResult:
            sums, flat_tasks = self.start_round(request.state, request.tasks, request.round)
            trained = self.pool.train(flat_tasks, lambda: self._work_ahead(request.coming))
            reports = self.add_updates(sums, islice(trained, len(flat_tasks)))
            del flat_tasks  # their sub-models are gone before averaging begins
            self._check_room(sums.values())
            finished = self.finish_sums(request.state, sums)
            wait_for_all(trained)
            return finished, reports.report()

        return run_within_memory(self.pool, work)

    def start_round(
        self, state: Mapping[str, Tensor], tasks: Sequence[Task], round: int
    ) -> tuple[dict[str, FlatSum], list[FlatTask]]:
        """The round's sums, which are still empty, and its flat tasks."""
        flat = self._flatten(state)
        sums, orders = self._take_prepared(tasks, round)
        starts: dict[str, Tensor] = {}
        for cohort in sums.values():
            if cohort.index.key not in starts:
                starts[cohort.index.key] = torch.index_select(flat.flat, 0, cohort.positions)
        subs = [self.layouts.subs[size_of(task)] for task in tasks]
        cuts = [starts[task.index.key] for task in tasks]
        flat_tasks = make_flat_tasks(self.trainer, tasks, subs, cuts, orders=orders, round=round)
        if self._changed:
            flat_tasks = [replace(each, others=self._cut_others(flat, each.task.index)) for each in flat_tasks]
        return sums, self._with_sent(flat_tasks, sums)

    def _with_sent(self, flat_tasks: list[FlatTask], sums: Mapping[str, FlatSum]) -> list[FlatTask]:
        """The tasks with what their clients are sent beside their sub-models."""
        layout = self.layouts.full
        if layout is None or not any(flat_task.task.sends for flat_task in flat_tasks):
            return flat_tasks
        cut: dict[object, Tensor] = {}  # what several clients with one index are sent is cut once
        found = []
        for flat_task in flat_tasks:
            task, sent = flat_task.task, {}
            for name, value in task.sends.items():
                tensors = map(id, value.values()) if isinstance(value, Mapping) else [value]
                key = (tuple(tensors), task.index.key)
                if key not in cut:
                    cut[key] = cut_sent(value, layout, sums[task.cohort].positions)
                sent[name] = cut[key]
            found.append(replace(flat_task, sent=sent))
        return found

    def finish_sums(self, state: Mapping[str, Tensor], sums: dict[str, FlatSum]) -> FlatSums:
        """The sums as the round hands them on; where they are averaged here, that is queued behind the training now."""
        assert self.layouts.full is not None
        found = FlatSums(list(sums.values()), self.layouts.full)
        if self.averages_here:
            found.average_beforehand(state)
        return found

    def add_updates(self, sums: dict[str, FlatSum], trained: Iterator[FlatUpdate]) -> ClientReports:
        """Add the updates to the sums as they come, and collect what the clients report."""
        reports = ClientReports()
        for update in trained:
            flat_task = update.flat_task
            task, order = flat_task.task, flat_task.order
            with error_context("add", flat_task.round, task):
                self._add(sums[task.cohort], update)
            reports.passes.append(sum(order.lengths))
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
        self._prepared = None
        self.layouts.subs.clear()
        self._positions.clear()

    def prepare(self, tasks: Sequence[Task], round: int) -> None:
        """Prepare a coming round: neither the positions of its sub-models nor the orders of samples need a state."""
        orders = draw_orders(self.trainer, tasks, round)
        self._prepared = Prepared(_key_of(tasks), round, self._make_sums(tasks, round), orders)
        self.pool.prepare(self.trainer, orders)  # last: what needs the most memory may be left out

    def _work_ahead(self, coming: Coming | None) -> None:
        """Prepare the coming round, if it is known already and the device has memory for it."""
        found = coming() if coming is not None else None
        if found is not None:
            tasks, round = found
            if_memory_allows(lambda: self.prepare(tasks, round))

    def _take_prepared(self, tasks: Sequence[Task], round: int) -> tuple[dict[str, FlatSum], list[Order]]:
        """The round's empty sums and its clients' orders, made beforehand or now."""
        ready, self._prepared = self._prepared, None
        if ready is not None and ready.round == round and ready.key == _key_of(tasks):
            return ready.sums, ready.orders
        return self._make_sums(tasks, round), draw_orders(self.trainer, tasks, round)

    def _check_room(self, sums: Iterable[FlatSum]) -> None:
        """Find out, while a smaller pool could help, whether averaging has memory for a state, weights and a cohort."""
        layout = self.layouts.full
        if self.trainer.device.type == "cuda" and layout is not None and self.pool.can_shrink:
            each = layout.dtype.itemsize + torch.float64.itemsize
            needed = layout.size * each + max(cohort.room for cohort in sums)
            torch.empty(needed, dtype=torch.uint8, device=self.trainer.device)

    def _flatten(self, state: Mapping[str, Tensor]) -> FlatState:
        """The state as one vector."""
        if self.layouts.full is None:
            self.layouts.full = Layout(self.trainer.plan, state, next(self.trainer.model.parameters()).dtype)
        if self._changed is None:
            self._changed = changed_by_training(self.trainer.model, self.layouts.full.others)
        return self.layouts.full.flatten(state)

    def _cut_others(self, state: FlatState, index: Index) -> dict[str, Tensor]:
        """The sub-model's tensors that training may change and that are not in the vector."""
        return {name: take(state.others[name], index, name) for name in self._changed or ()}

    def _make_sums(self, tasks: Sequence[Task], round: int) -> dict[str, FlatSum]:
        """An empty sum for each cohort, with the positions that its sub-model has in the state's vector."""
        assert self.layouts.full is not None
        sums: dict[str, FlatSum] = {}
        positions: dict[str, Tensor] = {}
        for task in tasks:
            index, size = task.index, size_of(task)
            with error_context("cut", round, task):
                if size not in self.layouts.subs:
                    last = self.pool.channels_last(index)
                    self.layouts.subs[size] = SubLayout(
                        self.layouts.full, index, self.trainer.device, channels_last=last
                    )
                if task.cohort not in sums:
                    known = positions.get(index.key, self._positions.get(index.key))
                    positions[index.key] = known if known is not None else self.layouts.subs[size].positions(index)
                    sums[task.cohort] = FlatSum(index, self.layouts.subs[size], positions[index.key])
        self._positions = positions
        return sums

    def _add(self, cohort: FlatSum, update: FlatUpdate) -> None:
        """Add a client's update to its cohort, with the client's weight."""
        trainer, flat_task = self.trainer, update.flat_task
        weight, labels = weigh_client(trainer, flat_task.task, flat_task.order.steps)
        rows = None
        if labels is not None and trainer.plan.label_axes and len(labels) < trainer.data.classes:
            rows = self._labelled_rows(flat_task.size, labels)
        cohort.add_flat(update.flat, weight, rows)
        cohort.add_others(update.others, weight)
        cohort.add_reports({name: update.reports[name] for name in trainer.rule.local.adds if name in update.reports})

    def _labelled_rows(self, size: Size, labels: Tensor) -> Tensor:
        """For every labelled element of the sub-model: 0 if it belongs to a class the client lacks, else 1."""
        table = torch.zeros(self.trainer.data.classes, dtype=torch.float64)
        table[labels] = 1.0
        return copy_to_device(table, self.trainer.device)[self.layouts.subs[size].classes]


def _key_of(tasks: Sequence[Task]) -> object:
    """Clients, capacities and cohorts of a round: what was prepared for it serves any round that has the same ones."""
    return [(task.client, task.capacity, task.cohort) for task in tasks]
