"""The batches of a round's clients on the device, gathered while it still trains the round before."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedwidth.engines.flat.jobs import NOBODY, Job, Order
from fedwidth.engines.flat.layout import send
from fedwidth.training.client import Trainer

MAX_AHEAD = 2**28
"""Bytes that may wait for their round, also during an evaluation: ten clients with 500 pictures of 32 x 32 have 61
million. While they are normalised they take up to three times as much."""

Batches = list[tuple[Tensor, Tensor]]
"""Inputs and targets of each step of a client."""


class Gathered:
    """Batches made beforehand. They are nobody's state: what is missing here is gathered when it is needed."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Order, Batches]] = {}
        """By identity of the order, which is held too: no other one can take its address."""
        self._limit = self._room = MAX_AHEAD
        self._each = 0
        """Bytes of one sample's inputs and targets."""

    def __len__(self) -> int:
        """How many clients' batches are held."""
        return len(self._held)

    def add(self, trainer: Trainer, orders: Sequence[Order]) -> None:
        """Gather what these clients will train on, if there is room for all of them."""
        if not self._each:
            one = trainer.data.transform(trainer.data.train.inputs[:1]), trainer.data.train.targets[:1].long()
            self._each = sum(part.numel() * part.element_size() for part in one)
        needed = self._each * sum(sum(order.lengths) for order in orders)
        if orders and needed <= self._room:  # in a round to come all clients may be excluded
            held = zip(orders, batches_of(trainer, orders), strict=True)
            self._held |= {id(order): (order, batches) for order, batches in held}
            self._room -= needed

    def take(self, jobs: Sequence[Job]) -> list[Batches]:
        """The batches of these clients, which are not held here any longer."""
        missing = [job.order for job in jobs if id(job.order) not in self._held]
        made = iter(batches_of(jobs[0].trainer, missing) if missing else ())
        return [self._held.pop(id(job.order))[1] if id(job.order) in self._held else next(made) for job in jobs]

    def clear(self) -> None:
        """Let go of those nobody came for."""
        self._held.clear()
        self._room = self._limit

    def stop(self) -> None:
        """Let go of all and gather nothing ahead from now on: the device needs the memory."""
        self._limit = 0
        self.clear()


def batches_of(trainer: Trainer, orders: Sequence[Order]) -> list[Batches]:
    """(inputs, targets) of every step of every client, gathered, augmented and normalised in one go on the device."""
    split, device = trainer.data.train, trainer.device
    present = [order.samples != NOBODY for order in orders]
    chosen = send(torch.cat([order.samples[here] for order, here in zip(orders, present, strict=True)]), device)
    drawn = None
    if orders[0].draws is not None:
        draws = [order.draws[here] for order, here in zip(orders, present, strict=True)]  # type: ignore[index]
        drawn = send(torch.cat(draws), device)
    inputs = trainer.data.transform(split.inputs[chosen], drawn is not None, draws=drawn)
    targets = split.targets[chosen].long()
    cuts = [length for order in orders for length in order.lengths]
    pairs = iter(list(zip(torch.split(inputs, cuts), torch.split(targets, cuts), strict=True)))
    return [[next(pairs) for _ in order.lengths] for order in orders]
