"""The clients of one round of several runs: in which order they take their samples, and what a stack of them needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedwidth.engines.flat.orders import draw_order
from fedwidth.engines.stacks.groups import StackClients
from fedwidth.methods import Task
from fedwidth.training.client import Trainer
from fedwidth.training.schedule import learning_rate

Coming = Callable[[], Sequence[tuple[Trainer, Sequence[Task], int]]]
"""Returns the trainer, tasks and number of the next round of each run that has one and can know it yet."""


@dataclass(frozen=True)
class RunRound:
    """One round of one run."""

    trainer: Trainer
    state: Mapping[str, Tensor]
    tasks: Sequence[Task]
    round: int


@dataclass(frozen=True)
class PackedClient:
    """A client of one of several runs, with what its training needs."""

    run: int
    """The number of its run."""
    position: int
    """Its position among the run's tasks."""
    task: Task
    order: int
    """The number of its order of samples, see `SharedOrders`."""
    steps: int
    passes: int
    """The number of training samples it sees."""


@dataclass(frozen=True)
class SharedOrders:
    """The orders in which the clients of a round take their samples; clients with equal orders share one."""

    partitions: dict[int, bytes]
    """The digest of each partition, see `partition_digests`."""
    numbers: dict[object, int]
    """The number of each order, by all that it depends on."""
    orders: list[Tensor]
    draws: list[Tensor | None]
    lengths: list[tuple[int, ...]]

    def number(self, trainer: Trainer, client: int, round: int) -> int:
        """The number of the order in which a client takes its samples, which is drawn if it is new."""
        training, seed = trainer.settings.training, trainer.settings.seed
        key = (self.partitions[id(trainer.partition)], seed, round, client, training.epochs, training.steps)
        if key not in self.numbers:
            order, lengths, draws = draw_order(trainer, client, round)
            self.numbers[key] = len(self.orders)
            self.orders.append(order)
            self.draws.append(draws)
            self.lengths.append(lengths)
        return self.numbers[key]


def run_name(trainer: Trainer) -> str:
    """The name that error messages give to one of the runs that train together."""
    return f"{trainer.method.name} with seed {trainer.settings.seed}"


def partition_digests(trainers: Sequence[Trainer]) -> dict[int, bytes]:
    """A digest of the training samples of every client, for each partition object among the runs."""
    partitions = {id(trainer.partition): trainer.partition for trainer in trainers}
    found = {}
    for key, partition in partitions.items():
        digest = hashlib.blake2b(digest_size=16)
        for tensor in (partition.train.samples, partition.train.offsets):
            digest.update(tensor.numpy().tobytes())
        found[key] = digest.digest()
    return found


def clients_of(round: RunRound, run: int, orders: SharedOrders) -> list[PackedClient]:
    """The clients of a run's round, in task order; their orders join those of the other runs."""
    found = []
    for position, task in enumerate(round.tasks):
        order = orders.number(round.trainer, task.client, round.round)
        lengths = orders.lengths[order]
        found.append(PackedClient(run, position, task, order, len(lengths), sum(lengths)))
    return found


def stack_clients(
    clients: Sequence[PackedClient],
    rounds: Sequence[RunRound],
    orders: SharedOrders,
    *,
    first: Sequence[int],
    lengths: tuple[int, ...] | None,
) -> StackClients:
    """What the training of these clients as a stack needs; `first` is the first row of each order of samples."""
    rates = [learning_rate(r.trainer.settings.training, r.round, r.trainer.settings.rounds) for r in rounds]
    return StackClients(
        tasks=[client.task for client in clients],
        rounds=[rounds[client.run].round for client in clients],
        first=[first[client.order] for client in clients],
        steps=[client.steps for client in clients],
        rates=[rates[client.run] for client in clients],
        absent=[rounds[client.run].trainer.absent(client.task.client) for client in clients],
        probes=[0] * len(clients),
        samples=[1] * len(clients),
        sent=[{}] * len(clients),
        lengths=lengths or (max(max(orders.lengths[number]) for number in {client.order for client in clients}),),
    )
