"""A pool of stacks: clients of one size train as one batch of models (`torch.func.vmap` over the skeleton).

Best for many small models, on the CPU too: a step of a hundred narrow networks costs little more than a step of one.
Where the model has no batch norm, clients with fewer samples join in: missing samples get targets that are ignored,
and a client that is done stays as it is. With batch norm only clients with equal batches share a stack, because
padding would change the batch statistics, and so do clients whose loss knows no target that is ignored.

On a GPU, stacks of different sizes train side by side, and those of convolutional models are small and several. Where
the device has no memory left, the pool goes on with fewer of them at a time, and then with half as many rows in each:
products of fewer models may be summed in another order, and nothing else changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress

import torch
from torch import Tensor, nn

from fedwidth.engines.faults import error_context
from fedwidth.engines.flat.orders import Order
from fedwidth.engines.flat.sums import check_rows
from fedwidth.engines.flat.tasks import FlatTask, FlatUpdate, Size, rows_given
from fedwidth.engines.flat.tensor_layout import Shapes, TensorLayout
from fedwidth.engines.memory import out_of_memory
from fedwidth.engines.stacks.groups import GroupSegment, ShapeGroup, StackClients, StackResult, StackShape
from fedwidth.engines.stacks.layers import can_stack_layers, stack_rows
from fedwidth.engines.stacks.samples import TrainingSamples
from fedwidth.engines.stacks.stack import Stack
from fedwidth.engines.stacks.store import MakeStack, StackStore
from fedwidth.engines.stacks.trial import stacks_channels_last
from fedwidth.training.client import Trainer

MAX_ELEMENTS = {"cpu": 2**22, "cuda": 2**28}
"""The number of elements of all vectors that train at a time: what fits the caches, and 1 GiB in single precision. More
clients train one part of them after the other."""

MAX_CONCURRENT = 8
"""The number of stacks that train side by side."""


class StackPool:
    """Stacks of clients, made for the tasks at hand."""

    def __init__(
        self,
        trainer: Trainer,
        *,
        merges: bool | None = None,
        rows: int | None = None,
        concurrent: int = MAX_CONCURRENT,
        make_stack: MakeStack = Stack,
    ) -> None:
        """`merges` and `rows`, of a stack whose convolutions are merged, are what suits the device unless given."""
        self.trainer, self.device = trainer, trainer.device
        self.coupled = why_coupled(trainer) is not None
        self.samples = TrainingSamples(trainer)
        last = stacks_channels_last(trainer)
        self.channels_last: Callable[[Shapes], bool] = lambda _: last
        suited = self.device.type == "cuda" and can_stack_layers(trainer.model)
        self.merges = suited if merges is None else merges
        """Whether narrow convolutions of neighbours are merged (`stacks.layers`)."""
        self.concurrent = concurrent
        """The number of stacks that train side by side; fewer where more did not fit, which changes no bit."""
        self.max_rows: dict[Size, int] = {}
        """The number of rows of a stack, for sizes of which more did not fit."""
        self._merged_rows = rows
        self._store = StackStore(trainer, self.samples, streams=concurrent, make_stack=make_stack)

    def train(
        self, flat_tasks: Sequence[FlatTask], meanwhile: Callable[[], None] | None = None
    ) -> Iterator[FlatUpdate]:
        """Group the tasks by shape, train the groups in stacks, and yield the updates in the order of the tasks."""
        number, updates = len(flat_tasks), self._train(flat_tasks, meanwhile)
        del flat_tasks  # what the caller has done with is gone before it asks for the last one
        yield from (updates.pop(each) for each in range(number))

    def _train(self, flat_tasks: Sequence[FlatTask], meanwhile: Callable[[], None] | None) -> dict[int, FlatUpdate]:
        """The updates by the number of their task."""
        first = self.load_orders([each.order.samples for each in flat_tasks], [each.order.draws for each in flat_tasks])
        given = [rows_given(each) for each in flat_tasks] if self.trainer.rule.local.rows else [{}] * len(flat_tasks)
        for flat_task, own in zip(flat_tasks, given, strict=True):
            if own:
                self.samples.load_rows(self.trainer.partition[flat_task.task.client], own)
        lengths = [each.order.lengths for each in flat_tasks]
        shapes: dict[StackShape, list[int]] = {}
        for number, flat_task in enumerate(flat_tasks):
            batches = lengths[number] if self.coupled else None
            shapes.setdefault((flat_task.size, batches, tuple(given[number])), []).append(number)
        groups: list[tuple[ShapeGroup, list[int]]] = []
        for shape, numbers in shapes.items():
            numbers.sort(key=lambda n: -len(lengths[n]))
            members = [flat_tasks[n] for n in numbers]
            probed = [each.task.client for each in members] if self.trainer.rule.probes else []
            clients = StackClients(
                tasks=[each.task for each in members],
                rounds=[each.round for each in members],
                first=[first[n] for n in numbers],
                steps=[len(lengths[n]) for n in numbers],
                rates=[each.learning_rate for each in members],
                absent=[each.order.absent for each in members],
                probes=[each.order.probes for each in members],
                samples=[self.trainer.partition.size(client) for client in probed],
                sent=[each.sent for each in members],
                lengths=shape[1] or (max(max(lengths[n]) for n in numbers),),
            )
            rows = torch.stack([each.start for each in members])
            groups.append((ShapeGroup.of(shape, members[0].sub, rows, clients), numbers))
        self.train_groups([group for group, _ in groups], meanwhile)
        updates: dict[int, FlatUpdate] = {}
        for group, numbers in groups:
            check_rows(group.rows, group.sub, group.clients.tasks, group.clients.rounds[0])
            for row, (number, vector, loss) in enumerate(zip(numbers, group.rows, group.losses, strict=True)):
                reports = {name: rows[row] for name, rows in group.reports.items()}
                updates[number] = FlatUpdate(flat_tasks[number], vector, loss, flat_tasks[number].others, reports)
        return updates

    def prepare(self, trainer: Trainer, orders: Sequence[Order]) -> None:
        """Do nothing: stacks read each batch from the whole training set."""

    def load_orders(self, orders: Sequence[Tensor], draws: Sequence[Tensor | None]) -> list[int]:
        """Copy the orders of a round's clients to where the stacks read them; returns the first row of each."""
        first, moved = self.samples.load_orders(orders, draws)
        if moved:  # captured steps read them where they were
            self._store.clear()
        return first

    def train_groups(self, groups: Sequence[ShapeGroup], meanwhile: Callable[[], None] | None = None) -> None:
        """Train clients of several shapes in place, on a GPU segments of them side by side.

        `meanwhile` is called once on a GPU, where steps are launched much faster than they run.

        Segments that run out of memory have changed no row yet, so their clients can train again: each counts once.
        """
        trained = [0] * len(groups)
        cleared = False
        idle = [meanwhile] if meanwhile is not None and self.device.type == "cuda" else []
        while segments := list(self._next_wave(groups, trained)):
            wave = [segment for _, segment in segments]
            others = not cleared and self._store.has_others(wave)
            if self._fits(wave, idle, or_fail=not others and (len(wave), len(wave[0].rows)) == (1, 1)):
                for number, segment in segments:
                    trained[number] = segment.span.stop
                cleared = False
            elif others:
                self._store.clear()  # it may fit without the stacks of other rounds
                cleared = True
            else:
                self._shrink(wave)

    def _next_wave(self, groups: Sequence[ShapeGroup], trained: Sequence[int]) -> Iterator[tuple[int, GroupSegment]]:
        """Segments to train side by side and the number of their group, where so many of each group have trained."""
        found, elements = 0, 0
        for number, (group, start) in enumerate(zip(groups, trained, strict=True)):
            room = self._room(group.shape[0], group.sub, len(group.rows))
            for first in range(start, len(group.rows), room):
                stack = first // room % self._concurrent  # the same for a client, wherever the waves are cut
                segment = GroupSegment(group, slice(first, min(first + room, len(group.rows))), room, stack)
                elements += segment.elements
                if found and (found >= self._concurrent or elements > MAX_ELEMENTS[self.device.type]):
                    return
                found += 1
                yield number, segment

    @property
    def can_shrink(self) -> bool:
        """Whether fewer stacks could train side by side, which leaves memory for the rest of a round."""
        return self._concurrent > 1

    def shrink(self) -> None:
        """Go on with half as many stacks side by side."""
        self.concurrent //= 2
        self._go_on_with(f"fewer stacks, {self.concurrent} at a time")

    def close(self) -> None:
        """Give memory back."""
        with suppress(RuntimeError):  # what broke the device was said already
            self._store.clear()

    def _room(self, size: Size, sub: TensorLayout, clients: int) -> int:
        """The number of rows of a stack, where a group has so many clients."""
        most = max(1, MAX_ELEMENTS[self.device.type] // sub.size)
        if self.merges:  # the same for any cohort, so that captured steps serve the next one
            room = min(most, self._merged_rows or stack_rows(sub.shapes.values()))
            return min(room, self.max_rows.get(size, room))
        parts = -(-clients // most)
        room = -(-clients // parts)
        if self.device.type == "cuda" and room > 16:
            room = -(-room // 16) * 16  # so that a captured step also serves a cohort with a few clients more
        return min(room, self.max_rows.get(size, room))

    @property
    def _concurrent(self) -> int:
        """How many stacks train side by side on this device."""
        return self.concurrent if self.merges or self.device.type == "cuda" else 1

    def _fits(self, wave: Sequence[GroupSegment], idle: list[Callable[[], None]], *, or_fail: bool) -> bool:
        """Train a wave in place; False where the device has no memory for it, unless `or_fail` asks for the error.

        What is in `idle` is done, once, while the device is busy.
        """
        try:
            self._store.make_room(wave)
            results = []
            with ExitStack() as exits:
                for segment in wave:
                    with self._error_context(segment):
                        stack = self._stack(segment)
                        exits.callback(stack.join)
                        results.append(stack.train(segment.rows, segment.clients))
                if idle:
                    idle.pop()()
            if self.merges:
                sums = torch.stack([result.vectors.sum() for result in results])
                for number, fine in enumerate(torch.isfinite(sums).tolist()):
                    if not fine:
                        with self._error_context(wave[number]):
                            results[number] = self._train_unmerged(wave[number])
            for segment, result in zip(wave, results, strict=True):
                segment.put(result)
        except Exception as error:
            if or_fail or not out_of_memory(error):
                raise
            return False
        return True

    def _error_context(self, segment: GroupSegment) -> AbstractContextManager[None]:
        """Within it, exceptions name the clients of a segment."""
        return error_context("train", segment.clients.rounds[0], *segment.clients.tasks)

    def _train_unmerged(self, segment: GroupSegment) -> StackResult:
        """Train a segment again without merging: one client's infinities have reached its neighbours."""
        stack = self._stack(segment, merge=False)
        result = stack.train(segment.rows, segment.clients)
        stack.join()
        return result._replace(vectors=result.vectors.clone(), losses=result.losses.clone())  # others train here too

    def _shrink(self, wave: Sequence[GroupSegment]) -> None:
        """Go on with half as many stacks at a time, or half the rows for clients of this size."""
        if len(wave) > 1:
            self.concurrent = len(wave) // 2
            self._go_on_with(f"fewer stacks, {self.concurrent} at a time")
            return
        size = wave[0].group.shape[0]
        self.max_rows[size] = len(wave[0].rows) // 2
        self._go_on_with(f"smaller stacks, {self.max_rows[size]} of capacity {float(size[0]):g} at a time")

    def _go_on_with(self, less: str) -> None:
        """Let go of all stacks, and say with what less the pool goes on."""
        self._store.clear(streams=True)
        warnings.warn(f"out of memory on {self.device}: the vectorised engine goes on with {less}", stacklevel=2)

    def _stack(self, segment: GroupSegment, *, merge: bool = True) -> Stack:
        """The stack that a segment trains in."""
        return self._store.stack(segment, concurrent=self._concurrent, stacked_layers=self.merges, merge=merge)


def why_coupled(trainer: Trainer) -> str | None:
    """The reason why only clients with equally many samples in every batch can share a stack, or None."""
    others = (each.model for each in trainer.method.architectures.values())
    if any(map(couples_samples, (trainer.model, *others))):
        return "batch norm leaves no room for missing ones"
    if trainer.objective.ignored is None:
        return f"the loss of {trainer.objective.title} may know no target that does not count"
    return None


def couples_samples(model: nn.Module) -> bool:
    """Whether a sample's output depends on the others of its batch, so that missing samples cannot be filled in."""
    return any(isinstance(module, nn.modules.batchnorm._NormBase) for module in model.modules())
