"""A crew of stacks: clients of one size train as one batch of models (`torch.func.vmap` over the skeleton).

Best for many small models, on the CPU too: a step of a hundred narrow networks costs little more than a step of one.
Where the model has no batch norm, clients with fewer samples join in: missing samples get targets that are ignored,
and a client that is done stays as it is. With batch norm only clients with equal batches share a stack, because
padding would change the batch statistics.

On a GPU, stacks of different sizes train side by side, and those of convolutional models are small and several. Where
the device has no memory left, the crew goes on with fewer of them at a time, and then with half as many rows in each:
products of fewer models may be summed in another order, and nothing else changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress

import torch
from torch import Tensor, nn

from fedwidth.core.index import Index
from fedwidth.engines.faults import named, out_of_memory
from fedwidth.engines.flat.jobs import Done, Job, Order, Size
from fedwidth.engines.flat.layout import SubLayout
from fedwidth.engines.flat.sums import check_rows
from fedwidth.engines.stacks.groups import Group, Lot, Portion, Shape, Trained
from fedwidth.engines.stacks.layers import can_be_layered, rows_for
from fedwidth.engines.stacks.samples import Samples
from fedwidth.engines.stacks.stack import Stack
from fedwidth.engines.stacks.store import Stock
from fedwidth.engines.stacks.trial import stacks_channels_last
from fedwidth.training.client import Trainer

MAX_NUMBERS = {"cpu": 2**22, "cuda": 2**28}
"""Of one vector of all clients of a stack: what fits the caches, and 1 GiB in single precision. More go in parts."""

STACKS_BESIDE = 8
"""That train side by side."""


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
        self.beside = STACKS_BESIDE
        """Stacks that train side by side; fewer where more did not fit, which changes no bit."""
        self.most: dict[Size, int] = {}
        """Rows of a stack, for sizes of which more did not fit."""
        self._stock = Stock(trainer, self.samples, places=STACKS_BESIDE)

    def train(self, jobs: Sequence[Job], meanwhile: Callable[[], None] | None = None) -> Iterator[Done]:
        """Group the jobs by shape, train the groups as stacks, and give them back in the order given."""
        number, done = len(jobs), self._train(jobs, meanwhile)
        del jobs  # what the caller has done with is gone before it asks for the last one
        yield from (done.pop(each) for each in range(number))

    def _train(self, jobs: Sequence[Job], meanwhile: Callable[[], None] | None) -> dict[int, Done]:
        """The trained clients by number."""
        first = self.hold([job.order.samples for job in jobs], [job.order.draws for job in jobs])
        lengths = [job.order.lengths for job in jobs]
        groups: dict[Shape, list[int]] = {}
        for number, job in enumerate(jobs):
            groups.setdefault((job.size, lengths[number] if self.coupled else None), []).append(number)
        found: list[tuple[Group, list[int]]] = []
        for (size, batches), numbers in groups.items():
            numbers.sort(key=lambda n: -len(lengths[n]))
            members = [jobs[n] for n in numbers]
            lot = Lot(
                [job.task for job in members],
                [job.round for job in members],
                [first[n] for n in numbers],
                [len(lengths[n]) for n in numbers],
                [job.learning_rate for job in members],
                [job.order.absent for job in members],
                [job.order.probes for job in members],
                [self.trainer.partition.size(job.task.client) for job in members] if self.trainer.rule.probes else [],
                [job.sent for job in members],
                batches or (max(max(lengths[n]) for n in numbers),),
            )
            rows = torch.stack([job.start for job in members])
            found.append((Group.of((size, batches), members[0].sub, rows, lot), numbers))
        self.train_groups([group for group, _ in found], meanwhile)
        done: dict[int, Done] = {}
        for group, numbers in found:
            check_rows(group.rows, group.sub, group.lot.tasks, group.lot.rounds[0])
            for place, (number, row, loss) in enumerate(zip(numbers, group.rows, group.losses, strict=True)):
                reports = {name: rows[place] for name, rows in group.reports.items()}
                done[number] = Done(jobs[number], row, loss, jobs[number].others, reports)
        return done

    def gather(self, trainer: Trainer, orders: Sequence[Order]) -> None:
        """Nothing: stacks read each batch from the whole training set."""

    def hold(self, orders: Sequence[Tensor], draws: Sequence[Tensor | None]) -> list[int]:
        """Put the orders of a round's clients where the stacks read them: the first row of each."""
        first, moved = self.samples.hold(orders, draws)
        if moved:  # captured steps read them where they were
            self._stock.clear()
        return first

    def train_groups(self, groups: Sequence[Group], meanwhile: Callable[[], None] | None = None) -> None:
        """Train clients of several shapes in place, on a GPU portions of them side by side.

        `meanwhile` is called once on a GPU, where steps are launched much faster than they run.

        Portions that run out of memory have changed no row yet, so their clients can train again: each counts once.
        """
        done = [0] * len(groups)
        alone = False
        idle = [meanwhile] if meanwhile is not None and self.device.type == "cuda" else []
        while portions := list(self._next(groups, done)):
            wave = [portion for _, portion in portions]
            others = not alone and self._stock.has_others(wave)
            if self._fits(wave, idle, or_fail=not others and (len(wave), len(wave[0].rows)) == (1, 1)):
                for number, portion in portions:
                    done[number] = portion.part.stop
                alone = False
            elif others:
                self._stock.clear()  # it may fit without the stacks of other rounds
                alone = True
            else:
                self._shrink(wave)

    def _next(self, groups: Sequence[Group], done: Sequence[int]) -> Iterator[tuple[int, Portion]]:
        """Portions to train side by side, with the number of their group, of which so many clients have trained."""
        found, numbers = 0, 0
        for number, (group, start) in enumerate(zip(groups, done, strict=True)):
            room = self._room(group.shape[0], group.sub, len(group.rows))
            for first in range(start, len(group.rows), room):
                stack = first // room % self._beside  # the same for a client, wherever the waves are cut
                portion = Portion(group, slice(first, min(first + room, len(group.rows))), room, stack)
                numbers += portion.numbers
                if found and (found >= self._beside or numbers > MAX_NUMBERS[self.device.type]):
                    return
                found += 1
                yield number, portion

    @property
    def can_shrink(self) -> bool:
        """Whether fewer stacks could train side by side, which leaves memory for the rest of a round."""
        return self._beside > 1

    def shrink(self) -> None:
        """Go on with half as many stacks side by side."""
        self.beside //= 2
        self._go_on_with(f"fewer stacks, {self.beside} at a time")

    def close(self) -> None:
        """Give memory back."""
        with suppress(RuntimeError):  # what broke the device was said already
            self._stock.clear()

    def _room(self, size: Size, sub: SubLayout, clients: int) -> int:
        """Rows of a stack for so many clients."""
        most = max(1, MAX_NUMBERS[self.device.type] // sub.size)
        if self.merges:  # the same for any cohort, so that captured steps serve the next one
            room = min(most, rows_for(sub.shapes.values()))
            return min(room, self.most.get(size, room))
        parts = -(-clients // most)
        room = -(-clients // parts)
        if self.device.type == "cuda" and room > 16:
            room = -(-room // 16) * 16  # so that a captured step also serves a cohort with a few clients more
        return min(room, self.most.get(size, room))

    @property
    def _beside(self) -> int:
        """How many stacks train side by side."""
        return self.beside if self.merges or self.device.type == "cuda" else 1

    def _fits(self, wave: Sequence[Portion], idle: list[Callable[[], None]], *, or_fail: bool) -> bool:
        """Train in place; False where the device has no memory for it, unless that is the end.

        What is in `idle` is done, once, while the device is busy.
        """
        try:
            self._stock.make_room(wave)
            trained = []
            with ExitStack() as stack:
                for portion in wave:
                    with self._naming(portion):
                        found = self._stack(portion)
                        stack.callback(found.join)
                        trained.append(found.train(portion.rows, portion.lot))
                if idle:
                    idle.pop()()
            if self.merges:
                sums = torch.stack([each.vectors.sum() for each in trained])
                for number, fine in enumerate(torch.isfinite(sums).tolist()):
                    if not fine:
                        with self._naming(wave[number]):
                            trained[number] = self._train_unmerged(wave[number])
            for portion, each in zip(wave, trained, strict=True):
                portion.put(each)
        except Exception as error:
            if or_fail or not out_of_memory(error):
                raise
            return False
        return True

    def _naming(self, portion: Portion) -> AbstractContextManager[None]:
        return named("train", portion.lot.rounds[0], *portion.lot.tasks)

    def _train_unmerged(self, portion: Portion) -> Trained:
        """One client's infinities have reached its neighbours: train again, to find out whose they are."""
        alone = self._stack(portion, merge=False)
        found = alone.train(portion.rows, portion.lot)
        alone.join()
        return found._replace(vectors=found.vectors.clone(), losses=found.losses.clone())  # others train here too

    def _shrink(self, wave: Sequence[Portion]) -> None:
        """Go on with half as many stacks at a time, or half the rows for clients of this size."""
        if len(wave) > 1:
            self.beside = len(wave) // 2
            self._go_on_with(f"fewer stacks, {self.beside} at a time")
            return
        size = wave[0].group.shape[0]
        self.most[size] = len(wave[0].rows) // 2
        self._go_on_with(f"smaller stacks, {self.most[size]} of capacity {float(size[0]):g} at a time")

    def _go_on_with(self, less: str) -> None:
        self._stock.clear(places=True)
        warnings.warn(f"out of memory on {self.device}: the vectorised engine goes on with {less}", stacklevel=2)

    def _stack(self, portion: Portion, *, merge: bool = True) -> Stack:
        return self._stock.stack(portion, beside=self._beside, layered=self.merges, merge=merge)


def couples_samples(model: nn.Module) -> bool:
    """Whether a sample's output depends on the others of its batch, so that missing samples cannot be filled in."""
    return any(isinstance(module, nn.modules.batchnorm._NormBase) for module in model.modules())
