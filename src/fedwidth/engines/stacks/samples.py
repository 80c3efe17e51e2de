"""The training samples on the device, and the orders in which the clients of a round take them.

    orders[rows, batch]    the batches of all clients one below the other; `NO_SAMPLE` where a batch is short
    client c, step s       takes row first[c] + s

Nothing moves between two rounds: a captured step reads from the same addresses, and clients that take the same samples
in the same order (of several runs of a sweep) share their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from fedwidth.data import IGNORE
from fedwidth.engines.flat.orders import NO_SAMPLE
from fedwidth.training.client import Trainer

MAX_PREPARED = {"cpu": 2**26, "cuda": 2**31}
"""Bytes up to which the whole training set is normalised beforehand instead of batch by batch."""


class TrainingSamples:
    """The training set of one trainer, with room for a round's orders."""

    def __init__(self, trainer: Trainer) -> None:
        self.split, self.transform, self.device = trainer.data.train, trainer.data.transform, trainer.device
        self.augments = trainer.settings.training.augment and self.transform.augments
        self.orders = torch.empty(0, trainer.settings.training.batch_size, dtype=torch.long)
        self.draws: Tensor | None = None
        self._prepared: Tensor | None = None
        one = self.transform(self.split.inputs[:1])
        if not self.augments and one.numel() * one.element_size() * len(self.split) <= MAX_PREPARED[self.device.type]:
            self._prepared = self.transform(self.split.inputs)

    def load_orders(self, orders: Sequence[Tensor], draws: Sequence[Tensor | None]) -> tuple[list[int], bool]:
        """Copy the clients' orders [steps, batch] here; the first row of each, and whether addresses changed."""
        first = [0, *accumulate(len(order) for order in orders)]
        rows = first.pop()
        moved = rows > len(self.orders)
        if moved:  # with some room to spare: other cohorts take a few more steps
            room = rows + rows // 8
            fresh = torch.zeros(room, self.orders.shape[1], dtype=torch.long, device=self.device)
            if self.augments:
                self.draws = torch.zeros(*fresh.shape, 3, dtype=torch.long, device=self.device)
            self.orders = fresh  # last: without memory for both, the round begins again
        self.orders[:rows].copy_(torch.cat(list(orders)))
        if self.augments:
            assert self.draws is not None
            self.draws[:rows].copy_(torch.cat([each for each in draws if each is not None]))
        return first, moved

    def lengths(self, rows: Tensor) -> Tensor:
        """The number of samples in each of these rows."""
        return (self.orders.index_select(0, rows) != NO_SAMPLE).sum(1)

    def batch(self, rows: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Inputs [clients, batch, …] and targets of these rows, targets ignored where a sample is missing."""
        order = self.orders.index_select(0, rows)[:, :longest]
        chosen = order.clamp(min=0).flatten()
        if self._prepared is not None:
            inputs = self._prepared.index_select(0, chosen)
        else:
            draws = None
            if self.augments:
                assert self.draws is not None
                draws = self.draws.index_select(0, rows)[:, :longest].flatten(0, 1)
            inputs = self.transform(self.split.inputs[chosen], self.augments, draws=draws)
        targets = torch.unflatten(self.split.targets[chosen].long(), 0, order.shape)
        missing = (order == NO_SAMPLE).view(*order.shape, *[1] * (targets.dim() - 2))
        return torch.unflatten(inputs, 0, order.shape), targets.masked_fill(missing, IGNORE)
