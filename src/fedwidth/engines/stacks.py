"""A crew of stacks: clients of one size train as one batch of models (`torch.func.vmap` over the skeleton).

Best for many small models, on the CPU too: a step of a hundred narrow networks costs little more than a step of one.
Where the model has no batch norm, clients with fewer samples join in: missing samples get targets that are ignored,
and a client that is done stays as it is. With batch norm only clients with equal batches share a stack, because
padding would change the batch statistics.

Where the device has no memory left, the crew goes on with stacks of half as many rows: products of fewer models may be
summed in another order, and nothing else changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.client import Trainer
from fedwidth.engines.faults import free_memory, named, out_of_memory
from fedwidth.engines.flat import SubLayout
from fedwidth.engines.flat_sums import check_rows
from fedwidth.engines.jobs import Done, Job, Size
from fedwidth.engines.samples import Samples
from fedwidth.engines.stack import Lot, Stack
from fedwidth.index import Index
from fedwidth.methods import Task

MOST_STACKS = 64
"""Stacks, with their captured steps, that are kept."""

MOST_NUMBERS = {"cpu": 2**22, "cuda": 2**28}
"""Of one vector of all clients of a stack: what fits the caches, and 1 GiB in single precision. More go in parts."""

Shape = tuple[Size, tuple[int, ...] | None]
"""What shares a stack: the size, and with batch norm the samples in each batch."""


class Stacks:
    """Stacks of clients, made for the jobs at hand."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.device = trainer, trainer.device
        self.coupled = couples_samples(trainer.model)
        self.samples = Samples(trainer)
        self.channels_last: Callable[[Index], bool] = lambda _: False  # stacked clients lie channel beside channel
        self.meanwhile: Callable[[], None] = lambda: None
        """Never called: a stack's steps are launched one by one, which keeps the processor busy."""
        self.most: dict[Size, int] = {}
        """Rows of a stack, for sizes of which more did not fit."""
        self._stacks: dict[object, Stack] = {}
        self._pool = self._make_pool()

    def train(self, jobs: Sequence[Job]) -> Iterator[Done]:
        """Group the jobs by shape, train each group as one, and give them back in the order given."""
        first = self.hold([job.order for job in jobs], [job.draws for job in jobs])
        lengths = [job.lengths for job in jobs]
        groups: dict[Shape, list[int]] = {}
        for number, job in enumerate(jobs):
            groups.setdefault((job.size, lengths[number] if self.coupled else None), []).append(number)
        done: dict[int, Done] = {}
        for (size, batches), numbers in groups.items():
            numbers.sort(key=lambda n: -len(lengths[n]))
            members = [jobs[n] for n in numbers]
            lot = Lot(
                [job.task for job in members],
                [job.round for job in members],
                [first[n] for n in numbers],
                [len(lengths[n]) for n in numbers],
                [job.learning_rate for job in members],
                [job.absent for job in members],
                batches or (max(max(lengths[n]) for n in numbers),),
            )
            sub, rows = members[0].sub, torch.stack([job.start for job in members])
            losses = self.train_lot((size, batches), sub, rows, lot)
            check_rows(rows, sub, lot.tasks, members[0].round)
            for number, row, loss in zip(numbers, rows, losses, strict=True):
                done[number] = Done(jobs[number], row, loss, jobs[number].others)
        yield from (done[number] for number in range(len(jobs)))

    def hold(self, orders: Sequence[Tensor], draws: Sequence[Tensor | None]) -> list[int]:
        """Put the orders of a round's clients where the stacks read them: the first row of each."""
        first, moved = self.samples.hold(orders, draws)
        if moved:
            for stack in self._stacks.values():
                stack.graphs.clear()
        return first

    def train_lot(self, shape: Shape, sub: SubLayout, rows: Tensor, lot: Lot) -> Tensor:
        """Train clients of one shape, one vector in each row, in place; returns their sums of losses.

        A part that runs out of memory has changed no row yet, so its clients can train again: each counts once.
        """
        room = self._room(shape[0], sub, len(rows))
        losses = torch.empty(len(rows), dtype=rows.dtype, device=self.device)
        start = 0
        while start < len(rows):
            part = slice(start, start + room)
            if self._fits(shape, sub, rows[part], losses[part], lot=lot[part], room=room):
                start += room
            else:
                room = self._shrink(shape[0], room)
        return losses

    can_shrink = False
    """Stacks are cut into parts that fit while they train; where there is no memory for the rest, nothing helps."""

    def shrink(self) -> None:
        """Give memory back."""
        free_memory(self.device, self._stacks.clear)

    def close(self) -> None:
        """Give memory back."""
        self._stacks.clear()

    def _room(self, size: Size, sub: SubLayout, clients: int) -> int:
        """Rows of a stack for so many clients."""
        parts = -(-clients // max(1, MOST_NUMBERS[self.device.type] // sub.size))
        room = -(-clients // parts)
        if self.device.type == "cuda" and room > 16:
            room = -(-room // 16) * 16  # so that a captured step also serves a cohort with a few clients more
        return min(room, self.most.get(size, room))

    def _fits(self, shape: Shape, sub: SubLayout, rows: Tensor, losses: Tensor, *, lot: Lot, room: int) -> bool:
        """Train one part in place; False where the device has no memory for it, and could have for half of it."""
        try:
            with named("train", lot.rounds[0], *lot.tasks):
                trained, sums = self._stack(shape, lot.tasks[0], sub, room).train(rows, lot)
                losses.copy_(sums)
                rows.copy_(trained)
        except Exception as error:
            if room == 1 or not out_of_memory(error):
                raise
            return False
        return True

    def _shrink(self, size: Size, room: int) -> int:
        """Go on with half the rows for clients of this size."""
        self.most[size] = room // 2
        free_memory(self.device, self._stacks.clear)
        self._pool = self._make_pool()  # a capture that failed may have left the old one half used
        warnings.warn(
            f"out of memory on {self.device}: the vectorised engine goes on with smaller stacks, "
            f"{self.most[size]} of capacity {float(size[0]):g} at a time",
            stacklevel=2,
        )
        return self.most[size]

    def _make_pool(self) -> Any:
        return torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    def _stack(self, shape: Shape, task: Task, sub: SubLayout, rows: int) -> Stack:
        key = (shape, rows)
        if key not in self._stacks:
            if len(self._stacks) >= MOST_STACKS:
                self._stacks.clear()
            self._stacks[key] = Stack(self.trainer, task, sub, self.samples, rows=rows, pool=self._pool)
        return self._stacks[key]


def couples_samples(model: nn.Module) -> bool:
    """Whether a sample's output depends on the others of its batch, so that missing samples cannot be filled in."""
    return any(isinstance(module, nn.modules.batchnorm._NormBase) for module in model.modules())
