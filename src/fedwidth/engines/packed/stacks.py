"""Packed runs as stacks: the clients of all runs that have one size train as one batch of models.

    states[runs, N]    the global states, one in each row
    rows[clients, n]   the sub-models of one size, of all runs

In each round they are cut out of the states with one gather, trained as one stack, and averaged run by run in task
order, a few kernels for all runs together. The arithmetic is that of the runs one by one with the vectorised engine;
only the order of sums inside a stacked product may differ, because more models take part in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.engines.flat.jobs import Size, size_of
from fedwidth.engines.flat.layout import Layout, SubLayout
from fedwidth.engines.flat.sums import check_rows
from fedwidth.engines.flat.trainers import fitting
from fedwidth.engines.packed.clients import Client, Coming, Orders, RunRound, clients_of, lot_of, name_of, who_has_what
from fedwidth.engines.packed.sums import Members, average_runs
from fedwidth.engines.stacks.groups import Group, Shape
from fedwidth.engines.stacks.pool import Stacks
from fedwidth.errors import UpdateError
from fedwidth.training.client import Trainer
from fedwidth.training.rounds import Report

MAX_GATHERED = 2**26
"""Positions gathered at a time."""


class StackPack:
    """Trains a round of several runs as stacks."""

    def __init__(self, trainers: Sequence[Trainer], layout: Layout) -> None:
        self.crew = Stacks(trainers[0])
        self.device = trainers[0].device
        self._layout = layout
        self._subs: dict[Size, SubLayout] = {}
        self._labels: dict[Size, Tensor] = {}
        self._partitions = who_has_what(trainers)
        self._orders = self._no_orders()
        """The orders of the next round, as far as they are known."""

    def close(self) -> None:
        """Give the device's memory back."""
        self.crew.close()
        self._subs.clear()
        self._labels.clear()

    def train(self, parts: Sequence[RunRound], coming: Coming) -> list[tuple[Sequence[CohortSum], Report]]:
        """The sums and what the clients reported, run by run."""
        orders, self._orders = self._orders, self._no_orders()
        return fitting(self.crew, lambda: self._train(parts, orders, coming))

    def _train(
        self, parts: Sequence[RunRound], orders: Orders, coming: Coming
    ) -> list[tuple[Sequence[CohortSum], Report]]:
        states = [self._layout.flatten(part.state) for part in parts]
        flats = torch.stack([state.flat for state in states])
        clients = [clients_of(part, run, orders) for run, part in enumerate(parts)]
        first = self.crew.hold(orders.orders, orders.draws)
        groups: dict[Size, dict[Shape, list[Client]]] = {}
        for client in (client for own in clients for client in own):
            size = size_of(client.task)
            shape = (size, orders.lengths[client.order] if self.crew.coupled else None)
            groups.setdefault(size, {}).setdefault(shape, []).append(client)
        losses: list[list[float]] = [[0.0] * len(own) for own in clients]
        members: list[tuple[Members, list[Client], list[Group]]] = []
        for shapes in groups.values():
            for group in shapes.values():
                group.sort(key=lambda client: -client.steps)
            everyone = [client for group in shapes.values() for client in group]
            member = self._cut(flats, everyone, parts)
            own, done = [], 0
            for shape, group in shapes.items():
                lot = lot_of(group, parts, orders, first=first, lengths=shape[1])
                own.append(Group.of(shape, member.sub, member.rows[done : done + len(group)], lot))
                done += len(group)
            members.append((member, everyone, own))
        self.crew.train_groups([group for _, _, own in members for group in own], lambda: self._work_ahead(coming))
        for member, everyone, own in members:
            steps = torch.tensor([client.steps for client in everyone], device=self.device)
            sums = torch.cat([group.losses for group in own])
            for client, loss in zip(everyone, (sums / steps).tolist(), strict=True):
                losses[client.run][client.place] = loss
            _check(member, everyone, parts)
        averaged = average_runs(states, flats, [member for member, _, _ in members], [p.trainer for p in parts])
        reports = [
            Report(tuple(client.passes for client in own), tuple(loss))
            for own, loss in zip(clients, losses, strict=True)
        ]
        return list(zip(averaged, reports, strict=True))

    def _no_orders(self) -> Orders:
        return Orders(self._partitions, {}, [], [], [])

    def _work_ahead(self, coming: Coming) -> None:
        """Choose the sub-models of the next round and shuffle its samples while the device trains."""
        for trainer, tasks, round in coming():
            for task in tasks:
                self._orders.number(trainer, task.client, round)

    def _cut(self, flats: Tensor, group: Sequence[Client], parts: Sequence[RunRound]) -> Members:
        """The sub-models of a group, one in each row, and where each comes from."""
        task, size = group[0].task, size_of(group[0].task)
        if size not in self._subs:
            last = self.crew.channels_last(task.index)
            self._subs[size] = SubLayout(self._layout, task.index, self.device, channels_last=last)
        sub = self._subs[size]
        indexes = {client.task.index.key: client.task.index for client in group}
        number = {key: place for place, key in enumerate(indexes)}
        where = sub.wheres(list(indexes.values()))
        which = torch.tensor([number[client.task.index.key] for client in group], device=self.device)
        run = torch.tensor([client.run for client in group], device=self.device)
        rows = flats.new_empty(len(group), sub.size)
        each = max(1, MAX_GATHERED // sub.size)
        for start in range(0, len(group), each):
            part = slice(start, start + each)
            positions = where[which[part]] + run[part, None] * flats.shape[1]
            torch.index_select(flats.view(-1), 0, positions.view(-1), out=rows[part].view(-1))
        labels = None
        if any(part.trainer.settings.server.label_rows for part in parts) and self._layout.plan.label_axes:
            classes = parts[0].trainer.data.classes
            if size not in self._labels:
                self._labels[size] = sub.labels(classes)
            labels = self._labels[size]
        return Members(
            sub,
            rows,
            where,
            which,
            run,
            labels,
            [(client.run, client.place, client.task, client.steps) for client in group],
        )


def _check(member: Members, clients: Sequence[Client], parts: Sequence[RunRound]) -> None:
    """Refuse what is not finite, naming run and client; one answer from the device for all, more only if it is no."""
    try:
        check_rows(member.rows, member.sub, [client.task for client in clients])
    except UpdateError:
        for row, client in zip(member.rows, clients, strict=True):
            part = parts[client.run]
            try:
                check_rows(row[None], member.sub, [client.task], part.round)
            except UpdateError as error:
                raise UpdateError(f"{name_of(part.trainer)}: {error}") from None
