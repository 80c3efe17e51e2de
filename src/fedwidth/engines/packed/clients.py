"""The clients of a round of several runs: which samples each takes in which order, and what a stack of them needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedwidth.engines.flat.jobs import drawn_by
from fedwidth.engines.stacks.groups import Lot
from fedwidth.methods import Task
from fedwidth.training.client import Trainer
from fedwidth.training.schedule import learning_rate

Coming = Callable[[], Sequence[tuple[Trainer, Sequence[Task], int]]]
"""The next round of each run that has one and can know it yet: its tasks and its number."""


@dataclass(frozen=True)
class RunRound:
    """One round of one run."""

    trainer: Trainer
    state: Mapping[str, Tensor]
    tasks: Sequence[Task]
    round: int


@dataclass(frozen=True)
class Client:
    """A task of a run, with what its training needs."""

    run: int
    place: int
    """In the run's tasks."""
    task: Task
    order: int
    steps: int
    passes: int


@dataclass(frozen=True)
class Orders:
    """The orders of a round's clients, equal ones once."""

    shares: dict[int, bytes]
    """A digest of each partition."""
    numbers: dict[object, int]
    orders: list[Tensor]
    draws: list[Tensor | None]
    lengths: list[tuple[int, ...]]

    def number(self, trainer: Trainer, client: int, round: int) -> int:
        """Of the order in which a client takes its samples."""
        training, seed = trainer.settings.training, trainer.settings.seed
        key = (self.shares[id(trainer.partition)], seed, round, client, training.epochs, training.steps)
        if key not in self.numbers:
            order, lengths, draws = drawn_by(trainer, client, round)
            self.numbers[key] = len(self.orders)
            self.orders.append(order)
            self.draws.append(draws)
            self.lengths.append(lengths)
        return self.numbers[key]


def name_of(trainer: Trainer) -> str:
    """A run's name among those that train together."""
    return f"{trainer.method.name} with seed {trainer.settings.seed}"


def who_has_what(trainers: Sequence[Trainer]) -> dict[int, bytes]:
    """A digest of the training samples of every client, for each partition object among the runs."""
    partitions = {id(trainer.partition): trainer.partition for trainer in trainers}
    found = {}
    for key, partition in partitions.items():
        digest = hashlib.blake2b(digest_size=16)
        for tensor in (partition.train.samples, partition.train.offsets):
            digest.update(tensor.numpy().tobytes())
        found[key] = digest.digest()
    return found


def clients_of(part: RunRound, run: int, orders: Orders) -> list[Client]:
    """The clients of a run, in task order; their orders join the others."""
    found = []
    for place, task in enumerate(part.tasks):
        order = orders.number(part.trainer, task.client, part.round)
        lengths = orders.lengths[order]
        found.append(Client(run, place, task, order, len(lengths), sum(lengths)))
    return found


def lot_of(
    group: Sequence[Client],
    parts: Sequence[RunRound],
    orders: Orders,
    *,
    first: Sequence[int],
    lengths: tuple[int, ...] | None,
) -> Lot:
    """What the training of these clients needs."""
    rates = [learning_rate(p.trainer.settings.training, p.round, p.trainer.settings.rounds) for p in parts]
    return Lot(
        [client.task for client in group],
        [parts[client.run].round for client in group],
        [first[client.order] for client in group],
        [client.steps for client in group],
        [rates[client.run] for client in group],
        [parts[client.run].trainer.absent(client.task.client) for client in group],
        [0] * len(group),
        [1] * len(group),
        [{}] * len(group),
        lengths or (max(max(orders.lengths[number]) for number in {client.order for client in group}),),
    )
