"""A crew of stacks: clients of one size train as one batch of models (`torch.func.vmap` over the skeleton).

Best for many small models, on the CPU too: a step of a hundred narrow networks costs little more than a step of one.
Where the model has no batch norm, clients with fewer samples join in: missing samples get targets that are ignored,
and a client that is done stays as it is. With batch norm only clients with equal batches share a stack, because
padding would change the batch statistics.

On a GPU, convolutional models train in several small stacks side by side. Where the device has no memory left, the crew
goes on with fewer of them at a time, and then with half as many rows in each: products of fewer models may be summed in
another order, and nothing else changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress

import torch
from torch import Tensor, nn

from fedwidth.client import Trainer
from fedwidth.engines.faults import free_memory, named, out_of_memory
from fedwidth.engines.flat import SubLayout
from fedwidth.engines.flat_sums import check_rows
from fedwidth.engines.jobs import Done, Job, Size
from fedwidth.engines.samples import Samples
from fedwidth.engines.stack import Lot, Place, Stack
from fedwidth.engines.stack_trial import stacks_channels_last
from fedwidth.engines.stacked_layers import can_be_layered
from fedwidth.index import Index
from fedwidth.methods import Task

MOST_STACKS = 64
"""Stacks, with their captured steps, that are kept."""

MOST_NUMBERS = {"cpu": 2**22, "cuda": 2**28}
"""Of one vector of all clients of a stack: what fits the caches, and 1 GiB in single precision. More go in parts."""

MOST_MERGED, STACKS_BESIDE = 10, 8
"""Rows of a stack whose convolutions are merged, and such stacks that train side by side: with more rows, groups become
many, and cuDNN launches some of its kernels group by group."""

Shape = tuple[Size, tuple[int, ...] | None]
"""What shares a stack: the size, and with batch norm the samples in each batch."""


class Stacks:
    """Stacks of clients, made for the jobs at hand."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.device = trainer, trainer.device
        self.coupled = couples_samples(trainer.model)
        self.samples = Samples(trainer)
        last = stacks_channels_last(trainer)
        self.channels_last: Callable[[Index], bool] = lambda _: last
        self.merges = self.device.type == "cuda" and can_be_layered(trainer.model)
        """Whether narrow convolutions of neighbours are merged (`stacked_layers`)."""
        self.meanwhile: Callable[[], None] = lambda: None
        """Called on a GPU, where steps are launched much faster than they run."""
        self._idle = False
        """Whether the processor has time for that in this round."""
        self.beside = STACKS_BESIDE
        """Stacks that train side by side; fewer where more did not fit, which changes no bit."""
        self.most: dict[Size, int] = {}
        """Rows of a stack, for sizes of which more did not fit."""
        self._stacks: dict[object, Stack] = {}
        self._places = self._make_places()

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
        self._idle = self.device.type == "cuda"
        first, moved = self.samples.hold(orders, draws)
        if moved:
            for stack in self._stacks.values():
                stack.graphs.clear()
        return first

    def train_lot(self, shape: Shape, sub: SubLayout, rows: Tensor, lot: Lot) -> Tensor:
        """Train clients of one shape, one vector in each row, in place; returns their sums of losses.

        They train in parts, some of them side by side. A part that runs out of memory has changed no row yet, nor have
        those beside it, so their clients can train again: each counts once.
        """
        room = self._room(shape[0], sub, len(rows))
        losses = torch.empty(len(rows), dtype=rows.dtype, device=self.device)
        start = 0
        while start < len(rows):
            end = min(start + room * self._beside(room * sub.size), len(rows))
            parts = [slice(first, min(first + room, end)) for first in range(start, end, room)]
            if self._fits(shape, sub, rows, losses, lot=lot, room=room, parts=parts):
                start = end
            else:
                room = self._shrink(shape[0], room, len(parts))
        return losses

    can_shrink = False
    """Stacks are cut into parts that fit while they train; where there is no memory for the rest, nothing helps."""

    def shrink(self) -> None:
        """Give memory back."""
        free_memory(self.device, self._stacks.clear)

    def close(self) -> None:
        """Give memory back."""
        self.meanwhile = lambda: None
        with suppress(RuntimeError):  # what broke the device was said already
            free_memory(self.device, self._stacks.clear)

    def _room(self, size: Size, sub: SubLayout, clients: int) -> int:
        """Rows of a stack for so many clients."""
        most = max(1, MOST_NUMBERS[self.device.type] // sub.size)
        if self.merges:  # the same for any cohort: a step is captured for every number of rows that take part
            room = min(most, MOST_MERGED)
            return min(room, self.most.get(size, room))
        parts = -(-clients // most)
        room = -(-clients // parts)
        if self.device.type == "cuda" and room > 16:
            room = -(-room // 16) * 16  # so that a captured step also serves a cohort with a few clients more
        return min(room, self.most.get(size, room))

    def _beside(self, numbers: int) -> int:
        """How many stacks of so many numbers train side by side."""
        fit = max(1, MOST_NUMBERS[self.device.type] // numbers)
        return min(fit, self.beside) if self.merges else 1

    def _fits(
        self,
        shape: Shape,
        sub: SubLayout,
        rows: Tensor,
        losses: Tensor,
        *,
        lot: Lot,
        room: int,
        parts: Sequence[slice],
    ) -> bool:
        """Train parts in place; False where the device has no memory for them, and could have for smaller ones."""
        try:
            with ExitStack() as stack:
                trained = []
                for place, part in enumerate(parts):
                    with named("train", lot.rounds[0], *lot.tasks[part]):
                        found = self._stack(shape, lot.tasks[0], sub, room, place)
                        stack.callback(found.join)
                        trained.append(found.train(rows[part], lot[part]))
                if self._idle:
                    self._idle = False
                    self.meanwhile()
            for place, part in enumerate(parts):
                with named("train", lot.rounds[0], *lot.tasks[part]):
                    if self.merges and not bool(torch.isfinite(trained[place][0].sum())):
                        trained[place] = self._train_unmerged(shape, sub, rows[part], lot=lot[part], room=room)
            for part, (vectors, sums) in zip(parts, trained, strict=True):
                rows[part].copy_(vectors)
                losses[part].copy_(sums)
        except Exception as error:
            if (room, len(parts)) == (1, 1) or not out_of_memory(error):
                raise
            return False
        return True

    def _train_unmerged(
        self, shape: Shape, sub: SubLayout, rows: Tensor, *, lot: Lot, room: int
    ) -> tuple[Tensor, Tensor]:
        """One client's infinities have reached its neighbours: train again, to find out whose they are."""
        alone = self._stack(shape, lot.tasks[0], sub, room, merge=False)
        vectors, sums = alone.train(rows, lot)
        alone.join()
        return vectors.clone(), sums.clone()  # the next part trains here too

    def _shrink(self, size: Size, room: int, beside: int) -> int:
        """Go on with half as many stacks at a time, or half the rows for clients of this size; returns the rows."""
        if beside > 1:
            self.beside = beside // 2
            less = f"fewer stacks, {self.beside} at a time"
        else:
            room = self.most[size] = room // 2
            less = f"smaller stacks, {room} of capacity {float(size[0]):g} at a time"
        free_memory(self.device, self._stacks.clear)
        self._places = self._make_places()  # a capture that failed may have left the old ones half used
        warnings.warn(f"out of memory on {self.device}: the vectorised engine goes on with {less}", stacklevel=2)
        return room

    def _make_places(self) -> list[Place]:
        return [Place.on(self.device) for _ in range(STACKS_BESIDE)]

    def _stack(
        self, shape: Shape, task: Task, sub: SubLayout, rows: int, place: int = 0, *, merge: bool = True
    ) -> Stack:
        """One of so many rows; those that train side by side have different places."""
        key = (shape, rows, place, merge)
        if key not in self._stacks:
            if len(self._stacks) >= MOST_STACKS and place == 0 and merge:  # then none of them is at work
                self._stacks.clear()
            self._stacks[key] = Stack(
                self.trainer,
                task,
                sub,
                self.samples,
                rows=rows,
                place=self._places[place],
                layered=self.merges,
                merge=merge,
            )
        return self._stacks[key]


def couples_samples(model: nn.Module) -> bool:
    """Whether a sample's output depends on the others of its batch, so that missing samples cannot be filled in."""
    return any(isinstance(module, nn.modules.batchnorm._NormBase) for module in model.modules())
