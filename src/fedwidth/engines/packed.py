"""Packed sweeps: many runs of one shape train as one batch on one device, so that a whole table is one job.

All runs advance in step. In each round the clients of all runs are grouped by size, cut out of the runs' states with
one gather, trained as one stack, and averaged run by run in task order, a few kernels for all runs together:

    states[runs, N]    the global states, one in each row
    rows[clients, n]   the sub-models of one size, of all runs

The arithmetic is that of the runs one by one with the vectorised engine; only the order of sums inside a stacked
product may differ, because more models take part in it. Work that is equal is done once: two runs with one state that
hand the same sub-models to the same clients end the round with one state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from fedwidth.client import Trainer
from fedwidth.data import Partition
from fedwidth.engines.flat import FlatState, Layout, SubLayout
from fedwidth.engines.flat_sums import check_rows
from fedwidth.engines.jobs import Size, size_of
from fedwidth.engines.packed_clients import Client, Orders, Part, clients_of, lot_of
from fedwidth.engines.packed_limits import why_not_pack
from fedwidth.engines.packed_sums import Members, average_runs
from fedwidth.engines.stacks import Shape, Stacks
from fedwidth.errors import OptionError, UpdateError
from fedwidth.methods.definition import average
from fedwidth.rounds import Report

MOST_GATHERED = 2**26
"""Positions gathered at a time."""


class Pack:
    """The engine of a packed sweep."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        reason = why_not_pack(trainers)
        if reason:
            raise OptionError(f"these runs cannot train as one batch: {reason}")
        self.crew = Stacks(trainers[0])
        self.device = trainers[0].device
        self._layout: Layout | None = None
        self._subs: dict[Size, SubLayout] = {}
        self._labels: dict[Size, Tensor] = {}
        own = {id(trainer.partition): trainer.partition for trainer in trainers}
        self._partitions = {key: _digest(partition) for key, partition in own.items()}
        self._shared = {id(t): _what_counts(t, self._partitions[id(t.partition)]) for t in trainers}

    def run(self, parts: Sequence[Part]) -> list[tuple[FlatState | dict[str, Tensor], Report]]:
        """Train a round of every run: the averaged states and what the clients reported.

        Runs that do the same work get the same state, as one object.
        """
        keys = [self._key(part) for part in parts]
        distinct = dict(zip(keys, parts, strict=True))
        trained = dict(zip(distinct, self._train(list(distinct.values())), strict=True))
        return [trained[key] for key in keys]

    def close(self) -> None:
        """Give the device's memory back."""
        self.crew.close()
        self._subs.clear()
        self._labels.clear()

    def flatten(self, trainer: Trainer, state: Mapping[str, Tensor]) -> FlatState:
        """A state as one vector, as the other states of the pack."""
        if self._layout is None:
            self._layout = Layout(trainer.plan, state, next(trainer.model.parameters()).dtype)
        return self._layout.flatten(state)

    def _key(self, part: Part) -> object:
        """What the outcome of a part depends on. States are compared as objects: equal work leaves one object."""
        tasks = tuple((task.client, task.capacity, task.index.key) for task in part.tasks)
        return id(part.state), part.round, self._shared[id(part.trainer)], tasks

    def _train(self, parts: Sequence[Part]) -> list[tuple[FlatState | dict[str, Tensor], Report]]:
        states = [self.flatten(part.trainer, part.state) for part in parts]
        flats = torch.stack([state.flat for state in states])
        orders = Orders(self._partitions, {}, [], [], [])
        clients = [clients_of(part, run, orders) for run, part in enumerate(parts)]
        first = self.crew.hold(orders.orders, orders.draws)
        groups: dict[Size, dict[Shape, list[Client]]] = {}
        for client in (client for own in clients for client in own):
            size = size_of(client.task)
            shape = (size, orders.lengths[client.order] if self.crew.coupled else None)
            groups.setdefault(size, {}).setdefault(shape, []).append(client)
        losses: list[list[float]] = [[0.0] * len(own) for own in clients]
        members = []
        for shapes in groups.values():
            for group in shapes.values():
                group.sort(key=lambda client: -client.steps)
            everyone = [client for group in shapes.values() for client in group]
            member = self._cut(flats, everyone, parts)
            sums, done = [], 0
            for shape, group in shapes.items():
                lot = lot_of(group, parts, orders, first=first, lengths=shape[1])
                rows = member.rows[done : done + len(group)]
                sums.append(self.crew.train_lot(shape, member.sub, rows, lot))
                done += len(group)
            steps = torch.tensor([client.steps for client in everyone], device=self.device)
            for client, loss in zip(everyone, (torch.cat(sums) / steps).tolist(), strict=True):
                losses[client.run][client.place] = loss
            _check(member, everyone, parts)
            members.append(member)
        averaged = average_runs(states, flats, members, [part.trainer for part in parts])
        reports = [
            Report(tuple(client.passes for client in own), tuple(loss))
            for own, loss in zip(clients, losses, strict=True)
        ]
        return list(zip(averaged, reports, strict=True))

    def _cut(self, flats: Tensor, group: Sequence[Client], parts: Sequence[Part]) -> Members:
        """The sub-models of a group, one in each row, and where each comes from."""
        task, size = group[0].task, size_of(group[0].task)
        assert self._layout is not None
        if size not in self._subs:
            self._subs[size] = SubLayout(self._layout, task.index, self.device, channels_last=False)
        sub = self._subs[size]
        indexes = {client.task.index.key: client.task.index for client in group}
        number = {key: place for place, key in enumerate(indexes)}
        where = sub.wheres(list(indexes.values()))
        which = torch.tensor([number[client.task.index.key] for client in group], device=self.device)
        run = torch.tensor([client.run for client in group], device=self.device)
        rows = flats.new_empty(len(group), sub.size)
        each = max(1, MOST_GATHERED // sub.size)
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


def _digest(partition: Partition) -> bytes:
    """Of who has which training samples."""
    found = hashlib.blake2b(digest_size=16)
    for tensor in (partition.train.samples, partition.train.offsets):
        found.update(tensor.numpy().tobytes())
    return found.digest()


def _what_counts(trainer: Trainer, partition: bytes) -> str:
    """What a round depends on besides state, tasks and round, as text."""
    settings, method = trainer.settings, trainer.method
    how = [] if method.aggregate_with is average else [method.name, method.values]
    facts = [settings.seed, settings.rounds, asdict(settings.training), asdict(settings.server), how]
    return json.dumps([partition.hex(), *facts], sort_keys=True, default=str)


def _check(member: Members, clients: Sequence[Client], parts: Sequence[Part]) -> None:
    """Refuse what is not finite, naming run and client; one answer from the device for all, more only if it is no."""
    try:
        check_rows(member.rows, member.sub, [client.task for client in clients])
    except UpdateError:
        for row, client in zip(member.rows, clients, strict=True):
            part = parts[client.run]
            run = f"{part.trainer.method.name} with seed {part.trainer.settings.seed}"
            try:
                check_rows(row[None], member.sub, [client.task], part.round)
            except UpdateError as error:
                raise UpdateError(f"{run}: {error}") from None
