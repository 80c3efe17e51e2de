"""The batches of a round's clients on the device, gathered while it still trains the round before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fedwidth.data.records import moved
from fedwidth.data.trees import bytes_of, pieces, widened
from fedwidth.engines.flat.layout import copy_to_device
from fedwidth.engines.flat.orders import NO_SAMPLE, Order
from fedwidth.engines.flat.tasks import FlatTask, rows_given
from fedwidth.training.client import Trainer
from fedwidth.training.loss import with_rows

MAX_BYTES_AHEAD = 2**28
"""Bytes that may wait for their round, also during an evaluation: ten clients with 500 pictures of 32 x 32 have 61
million. While they are normalised they take up to three times as much."""

Batches = list[tuple[Any, Any]]
"""Inputs and targets of each step of a client."""

Gather = Callable[[Trainer, Sequence[Order]], list[Batches]]
"""Makes the batches of the clients with these orders."""


class BatchesAhead:
    """Batches that were gathered before their round. What is missing here is gathered when it is needed."""

    def __init__(self, max_bytes: int = MAX_BYTES_AHEAD, gather: Gather | None = None) -> None:
        """`gather` makes the batches: `gather_batches`, unless somebody wants to know of it."""
        self._gather = gather or gather_batches
        self._held: dict[int, tuple[Order, Batches]] = {}
        """Batches by the identity of their order, which is held too: no other one can take its address."""
        self._limit = self._free = max_bytes
        self._sample_bytes = 0
        """The size of one sample's inputs and targets, once it is known."""

    def __len__(self) -> int:
        """The number of clients whose batches are held."""
        return len(self._held)

    def add(self, trainer: Trainer, orders: Sequence[Order]) -> None:
        """Gather what these clients will train on, if there is room for all of them."""
        if not self._sample_bytes:
            self._sample_bytes = bytes_of(trainer.data.example(1)) + bytes_of(trainer.data.example_targets(1))
        needed = self._sample_bytes * sum(sum(order.lengths) for order in orders)
        if orders and needed <= self._free:  # in a coming round all clients may be excluded
            held = zip(orders, self._gather(trainer, orders), strict=True)
            self._held |= {id(order): (order, batches) for order, batches in held}
            self._free -= needed

    def take(self, flat_tasks: Sequence[FlatTask]) -> list[Batches]:
        """The batches of these clients, which are not held here any longer."""
        orders = [flat_task.order for flat_task in flat_tasks]
        missing = [order for order in orders if id(order) not in self._held]
        made = iter(self._gather(flat_tasks[0].trainer, missing) if missing else ())
        return [self._held.pop(id(order))[1] if id(order) in self._held else next(made) for order in orders]

    def clear(self) -> None:
        """Let go of the batches that no client came for."""
        self._held.clear()
        self._free = self._limit

    def stop(self) -> None:
        """Let go of all batches and gather none ahead from now on: the device needs the memory."""
        self._limit = 0
        self.clear()


def gather_batches(trainer: Trainer, orders: Sequence[Order]) -> list[Batches]:
    """(inputs, targets) of every step of every client, gathered, augmented and normalised in one go on the device."""
    split, device = trainer.data.train, trainer.device
    if split.is_lazy:
        return [_read_batches(trainer, order) for order in orders]
    present = [order.samples != NO_SAMPLE for order in orders]
    samples = torch.cat([order.samples[here] for order, here in zip(orders, present, strict=True)])
    chosen = copy_to_device(samples, device)
    drawn = None
    if orders[0].draws is not None:
        draws = [order.draws[here] for order, here in zip(orders, present, strict=True)]  # type: ignore[index]
        drawn = copy_to_device(torch.cat(draws), device)
    stored, targets = split.read(chosen)
    inputs = trainer.data.transform(stored, drawn is not None, draws=drawn)
    lengths = [length for order in orders for length in order.lengths]
    cut = (pieces(tree, lambda tensor: torch.split(tensor, lengths)) for tree in (inputs, widened(targets)))
    pairs = zip(*cut, strict=True)
    return [[next(pairs) for _ in order.lengths] for order in orders]


def with_rows_given(flat_task: FlatTask, batches: Batches) -> Batches:
    """The batches of a client with the rows of what it was given for their samples, where its rule has such."""
    trainer, order = flat_task.trainer, flat_task.order
    if not trainer.rule.local.rows:
        return batches
    given, own = rows_given(flat_task), trainer.partition[flat_task.task.client]
    rising, sorter = own.sort()
    found: Batches = []
    for (inputs, targets), samples, length in zip(batches, order.samples, order.lengths, strict=True):
        places = sorter[torch.searchsorted(rising, samples[:length].contiguous())]
        found.append((inputs, with_rows(trainer.rule, targets, given, places)))
    return found


def _read_batches(trainer: Trainer, order: Order) -> Batches:
    """(inputs, targets) of every step of a client, each read by itself: batches may have shapes of their own."""
    data, device = trainer.data, trainer.device
    batches: Batches = []
    for step, (row, length) in enumerate(zip(order.samples, order.lengths, strict=True)):
        stored, targets = data.train.read(row[:length])
        draws = None if order.draws is None else order.draws[step, :length]
        inputs = data.transform(moved(stored, device), draws is not None, draws=draws)
        batches.append((inputs, widened(moved(targets, device))))
    return batches
