"""The training samples on the device, and the orders in which the clients of a round take them.

    orders[rows, batch]    the batches of all clients one below the other; `NO_SAMPLE` where a batch is short
    client c, step s       takes row first[c] + s

Nothing moves between two rounds: a captured step reads from the same addresses, and clients that take the same samples
in the same order (of several runs of a sweep) share their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from fedwidth.data.trees import Tree, bytes_of, mapped, widened
from fedwidth.engines.flat.orders import NO_SAMPLE
from fedwidth.training.client import Trainer
from fedwidth.training.loss import with_rows

MAX_PREPARED = {"cpu": 2**26, "cuda": 2**31}
"""Bytes up to which the whole training set is normalised beforehand instead of batch by batch."""


class TrainingSamples:
    """The training set of one trainer, with room for a round's orders."""

    def __init__(self, trainer: Trainer) -> None:
        self.split, self.transform, self.device = trainer.data.train, trainer.data.transform, trainer.device
        self.objective, self.rule = trainer.objective, trainer.rule
        self.given: dict[str, Tensor] = {}
        """What clients were given that has a row for each of their samples, by the number of the sample."""
        self.augments = trainer.settings.training.augment and self.transform.augments
        self.orders = torch.empty(0, trainer.settings.training.batch_size, dtype=torch.long)
        self.draws: Tensor | None = None
        self._prepared: Tree | None = None
        one = trainer.data.example(1)
        if not self.augments and bytes_of(one) * len(self.split) <= MAX_PREPARED[self.device.type]:
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

    def load_rows(self, samples: Tensor, given: Mapping[str, Tensor]) -> None:
        """Copy what a client was given for its samples here."""
        for name, rows in given.items():
            if name not in self.given:
                self.given[name] = rows.new_zeros(len(self.split), *rows.shape[1:])
            self.given[name][samples.to(rows.device)] = rows

    def lengths(self, rows: Tensor) -> Tensor:
        """The number of samples in each of these rows."""
        return (self.orders.index_select(0, rows) != NO_SAMPLE).sum(1)

    def batch(self, rows: Tensor, longest: int, given: Sequence[str] = ()) -> tuple[Tree, Tree]:
        """Inputs [clients, batch, …] and targets of these rows; targets of missing samples do not count.

        With the targets come the rows of what the clients were `given` for their samples.
        """
        order = self.orders.index_select(0, rows)[:, :longest]
        chosen = order.clamp(min=0).flatten()
        if self._prepared is not None:
            inputs = mapped(lambda tensor: tensor.index_select(0, chosen), self._prepared)
        else:
            draws = None
            if self.augments:
                assert self.draws is not None
                draws = self.draws.index_select(0, rows)[:, :longest].flatten(0, 1)
            stored = mapped(lambda tensor: tensor[chosen], self.split.inputs)
            inputs = self.transform(stored, self.augments, draws=draws)
        inputs, targets = (
            mapped(lambda tensor: torch.unflatten(tensor, 0, order.shape), tree)
            for tree in (inputs, widened(mapped(lambda tensor: tensor[chosen], self.split.targets)))
        )
        if self.objective.ignored is not None:  # else clients of a stack have equally many samples in every batch
            assert isinstance(targets, Tensor)
            targets = self.objective.without(targets, order == NO_SAMPLE)
        rows_of = {name: torch.unflatten(self.given[name][chosen], 0, order.shape) for name in given}
        return inputs, with_rows(self.rule, targets, rows_of)
