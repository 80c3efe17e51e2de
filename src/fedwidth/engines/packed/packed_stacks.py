"""Packed runs as stacks: the clients of all runs that have one size train as one batch of models.

    states[runs, N]    the global states, one in each row
    rows[clients, n]   the sub-models of one size, of all runs

In each round they are cut out of the states with one gather, trained as one stack, and averaged run by run in task
order, a few kernels for all runs together. The arithmetic is that of the runs one by one with the vectorised engine;
only the order of sums inside a stacked product may differ, because more models take part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedwidth.engines.flat.layout import Layout, SubLayout, copy_to_device
from fedwidth.engines.flat.sums import check_rows
from fedwidth.engines.flat.tasks import Size, size_of
from fedwidth.engines.memory import run_within_memory
from fedwidth.engines.packed.clients import (
    Coming,
    PackedClient,
    RunRound,
    SharedOrders,
    clients_of,
    partition_digests,
    run_name,
    stack_clients,
)
from fedwidth.engines.packed.sums import StackedUpdates, average_runs
from fedwidth.engines.stacks.groups import ShapeGroup, StackShape
from fedwidth.engines.stacks.pool import StackPool
from fedwidth.errors import UpdateError
from fedwidth.training.client import Trainer
from fedwidth.training.engine import Report, RoundResult

MAX_GATHERED = 2**26
"""The number of positions gathered at a time."""


class PackedStacks:
    """Trains a round of several runs as stacks."""

    def __init__(self, trainers: Sequence[Trainer], layout: Layout, pool: StackPool | None = None) -> None:
        self.pool = StackPool(trainers[0]) if pool is None else pool
        self.device = trainers[0].device
        self._layout = layout
        self._subs: dict[Size, SubLayout] = {}
        self._labels: dict[Size, Tensor] = {}
        """The class of each element of sub-models of one size."""
        self._partitions = partition_digests(trainers)
        self._orders = self._no_orders()
        """The orders of the next round, as far as they are known."""

    def close(self) -> None:
        """Give the device's memory back."""
        self.pool.close()
        self._subs.clear()
        self._labels.clear()

    def start(self, rounds: Sequence[RunRound], coming: Coming) -> Callable[[], list[RoundResult]]:
        """What trains a round of every run; it gives the sums and what the clients reported, run by run."""
        orders, self._orders = self._orders, self._no_orders()
        return lambda: run_within_memory(self.pool, lambda: self._train(rounds, orders, coming))

    def _train(self, rounds: Sequence[RunRound], orders: SharedOrders, coming: Coming) -> list[RoundResult]:
        """Train a round of every run with the memory there is."""
        states = [self._layout.flatten(round.state) for round in rounds]
        flats = torch.stack([state.flat for state in states])
        clients = [clients_of(round, run, orders) for run, round in enumerate(rounds)]
        first = self.pool.load_orders(orders.orders, orders.draws)
        by_size: dict[Size, dict[StackShape, list[PackedClient]]] = {}
        for client in (client for own in clients for client in own):
            size = size_of(client.task)
            shape: StackShape = (size, orders.lengths[client.order] if self.pool.coupled else None, ())
            by_size.setdefault(size, {}).setdefault(shape, []).append(client)
        losses: list[list[float]] = [[0.0] * len(own) for own in clients]
        stacked: list[tuple[StackedUpdates, list[ShapeGroup]]] = []
        for shapes in by_size.values():
            for alike in shapes.values():
                alike.sort(key=lambda client: -client.steps)
            updates = self._cut(flats, [client for alike in shapes.values() for client in alike], rounds)
            groups, done = [], 0
            for shape, alike in shapes.items():
                stackable = stack_clients(alike, rounds, orders, first=first, lengths=shape[1])
                rows = updates.rows[done : done + len(alike)]
                groups.append(ShapeGroup.of(shape, updates.sub, rows, stackable))
                done += len(alike)
            stacked.append((updates, groups))
        self.pool.train_groups([group for _, groups in stacked for group in groups], lambda: self._work_ahead(coming))
        for updates, groups in stacked:
            steps = copy_to_device(torch.tensor([client.steps for client in updates.clients]), self.device)
            sums = torch.cat([group.losses for group in groups])
            for client, loss in zip(updates.clients, (sums / steps).tolist(), strict=True):
                losses[client.run][client.position] = loss
            _check_finite(updates, rounds)
        averaged = average_runs(states, flats, [updates for updates, _ in stacked], [r.trainer for r in rounds])
        reports = [
            Report(tuple(client.passes for client in own), tuple(loss))
            for own, loss in zip(clients, losses, strict=True)
        ]
        return list(zip(averaged, reports, strict=True))

    def _no_orders(self) -> SharedOrders:
        """A collection of orders that has none yet."""
        return SharedOrders(self._partitions, {}, [], [], [])

    def _work_ahead(self, coming: Coming) -> None:
        """Choose the sub-models of the next round and shuffle its samples while the device trains."""
        for trainer, tasks, round in coming():
            for task in tasks:
                self._orders.number(trainer, task.client, round)

    def _cut(self, flats: Tensor, clients: Sequence[PackedClient], rounds: Sequence[RunRound]) -> StackedUpdates:
        """The sub-models of clients of one size, one in each row, cut out of the states of their runs."""
        task, size = clients[0].task, size_of(clients[0].task)
        if size not in self._subs:
            last = self.pool.channels_last(task.index.shapes)
            self._subs[size] = SubLayout(self._layout, task.index, self.device, channels_last=last)
        sub = self._subs[size]
        indexes = {client.task.index.key: client.task.index for client in clients}
        number = {key: nth for nth, key in enumerate(indexes)}
        positions = sub.positions_of(list(indexes.values()))
        places = [[number[client.task.index.key], client.run] for client in clients]
        which, runs = copy_to_device(torch.tensor(places), self.device).unbind(1)
        rows = flats.new_empty(len(clients), sub.size)
        each = max(1, MAX_GATHERED // sub.size)
        for start in range(0, len(clients), each):
            span = slice(start, start + each)
            gathered = positions.index_select(0, which[span]) + runs[span, None] * flats.shape[1]
            torch.index_select(flats.view(-1), 0, gathered.view(-1), out=rows[span].view(-1))
        labels = None
        if any(round.trainer.settings.server.label_rows for round in rounds) and self._layout.plan.label_axes:
            classes = rounds[0].trainer.data.classes
            if size not in self._labels:
                self._labels[size] = sub.labels(classes)
            labels = self._labels[size]
        return StackedUpdates(sub, rows, positions, which, runs, labels, clients)


def _check_finite(updates: StackedUpdates, rounds: Sequence[RunRound]) -> None:
    """Refuse clients whose values are not finite, naming run and client; the device is asked once where all are."""
    try:
        check_rows(updates.rows, updates.sub, [client.task for client in updates.clients])
    except UpdateError:
        for row, client in zip(updates.rows, updates.clients, strict=True):
            round = rounds[client.run]
            try:
                check_rows(row[None], updates.sub, [client.task], round.round)
            except UpdateError as error:
                raise UpdateError(f"{run_name(round.trainer)}: {error}") from None
