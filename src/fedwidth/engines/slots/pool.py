"""A pool of slots: many clients train side by side on one GPU, each in a slot with a stream and a captured step.

On the CPU the same code runs without graphs and streams, which is how it is tested where there is no GPU. Where the
device has no memory left, the pool goes on with fewer slots: their number changes no bit of the result.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import torch

from fedwidth.core.part import Part
from fedwidth.engines.faults import error_context
from fedwidth.engines.flat.orders import Order
from fedwidth.engines.flat.sums import check_finite
from fedwidth.engines.flat.tasks import FlatTask, FlatUpdate, Size
from fedwidth.engines.flat.tensor_layout import Shapes, TensorLayout
from fedwidth.engines.memory import free_memory, out_of_memory
from fedwidth.engines.slots.batches import Batches, BatchesAhead, with_rows_given
from fedwidth.engines.slots.making import channels_last, make_slot
from fedwidth.engines.slots.slot import Kind, Slot
from fedwidth.errors import UpdateError
from fedwidth.methods import Task
from fedwidth.randomness import host_kept, seed_host
from fedwidth.training.client import Trainer, dropout_seed

LAUNCH_THREADS = 10
"""The number of threads that launch captured steps."""

MAX_SIZES = 16
"""The number of sizes whose slots are kept for later rounds, each with a captured step and the memory of its
activations: clients of CoCoFL may train any of many runs of layers."""

Wave = list[tuple[FlatTask, Slot]]
"""Clients that train at the same time, each with its slot."""

MakeSlot = Callable[[Trainer, Part, TensorLayout, float], Slot]
"""Makes a slot for sub-models of the size of a part, see `make_slot`."""


class TrainedSlot(NamedTuple):
    """A slot whose client has trained, without the vector the client began with."""

    round: int
    task: Task
    run: str
    slot: Slot


class SlotPool:
    """Slots by the size of their sub-models; clients of one size take turns in them."""

    def __init__(
        self, trainer: Trainer, *, make_slot: MakeSlot = make_slot, batches_ahead: BatchesAhead | None = None
    ) -> None:
        self.trainer, self.device, self._make_slot = trainer, trainer.device, make_slot
        self.channels_last: Callable[[Shapes], bool] = partial(channels_last, trainer)
        self.per_size = trainer.settings.slots
        """The largest number of slots of one size."""
        self.in_all = sys.maxsize
        """The largest number of slots; lowered where the device has no memory for one of each size."""
        self.has_shrunk = False
        """Whether the device had too little memory for what was asked for."""
        self._wanted = 1
        """The largest number of slots of one size that was asked for so far."""
        self._slots: dict[Size, list[Slot]] = {}
        self._threads = ThreadPoolExecutor(LAUNCH_THREADS) if self.device.type == "cuda" else None
        self.batches_ahead = BatchesAhead() if batches_ahead is None else batches_ahead

    def train(
        self, flat_tasks: Sequence[FlatTask], meanwhile: Callable[[], None] | None = None
    ) -> Iterator[FlatUpdate]:
        """Train in waves: as many clients at a time as there are slots of their sizes.

        The first wave is under way when this returns: whoever asks for the updates later can do other work until then.
        A wave that runs out of memory has given nothing back yet, so its clients can train again: each counts once.
        """
        left = list(flat_tasks)
        return self._updates(left, self._begin_wave(left, meanwhile), meanwhile) if left else iter(())

    def _begin_wave(self, left: list[FlatTask], meanwhile: Callable[[], None] | None) -> tuple[Wave, list[Batches]]:
        """Queue the training of the first tasks, which are then no longer left; beside the last wave the caller works.

        The caller's stream is still free: what it queues runs beside the wave.
        """
        wave, batches = self._train_first(left)
        del left[: len(wave)]
        if not left:
            self.batches_ahead.clear()  # a round that came otherwise than expected has left some
            try:
                if meanwhile is not None:
                    meanwhile()
            except BaseException:
                self._join(wave)
                raise
        return wave, batches

    def _updates(
        self, left: list[FlatTask], begun: tuple[Wave, list[Batches]], meanwhile: Callable[[], None] | None
    ) -> Iterator[FlatUpdate]:
        """The updates of a wave that has begun, and of those that follow it."""
        wave, batches = begun
        del begun  # its memory is given back below
        while True:
            self._join(wave)
            del batches  # the slots' streams have read them: their memory may go to the caller's
            trained = [TrainedSlot(each.round, each.task, each.run, slot) for each, slot in wave]
            while wave:  # what is done with results comes after the training, without anybody waiting
                yield _update_of(*wave.pop(0))
            _check_finite(trained)  # waits for the device
            trained.clear()  # the next wave may need the slots' memory
            if not left:
                return
            wave, batches = self._begin_wave(left, meanwhile)

    def prepare(self, trainer: Trainer, orders: Sequence[Order]) -> None:
        """Gather the batches of a coming round."""
        self.batches_ahead.add(trainer, orders)

    @property
    def can_shrink(self) -> bool:
        """Whether the pool may have more than one slot, or holds batches that were gathered ahead."""
        return (self.per_size, self.in_all) != (1, 1) or len(self.batches_ahead) > 0

    def close(self) -> None:
        """Give memory and threads back."""
        if self._threads is not None:
            self._threads.shutdown()
        self.batches_ahead.clear()
        with suppress(RuntimeError):  # what broke the device was said already
            free_memory(self.device, self._slots.clear)
        self._slots.clear()

    def _train_first(self, flat_tasks: Sequence[FlatTask]) -> tuple[Wave, list[Batches]]:
        """Queue the training of as many of the first tasks as there are slots for; also what must live until then."""
        while True:
            wave: Wave = []
            try:
                wave.extend(self._assign_slots(flat_tasks))
                with host_kept():
                    return wave, self._train_wave(wave)
            except Exception as error:
                if not out_of_memory(error) or not self.can_shrink:
                    raise
            # Only here is the exception gone, and with it the tensors of the step that failed.
            wave.clear()
            self.shrink()

    def _assign_slots(self, flat_tasks: Sequence[FlatTask]) -> Iterator[tuple[FlatTask, Slot]]:
        """The tasks in order, each with a slot of its size, until a size has no free slot left."""
        self._let_go_of_oldest({flat_task.size for flat_task in flat_tasks})
        used: dict[Size, int] = {}
        for number, flat_task in enumerate(flat_tasks):
            taken = used.get(flat_task.size, 0)
            if taken == self.per_size or number == self.in_all:
                return
            used[flat_task.size] = taken + 1
            with error_context("train", flat_task.round, flat_task.task, run=flat_task.run):
                yield flat_task, self._slot(flat_task, taken, used)

    def _slot(self, flat_task: FlatTask, number: int, used: dict[Size, int]) -> Slot:
        """The slot with this number among those of a task's size, made if it is not there yet."""
        slots = self._slots[flat_task.size] = self._slots.pop(flat_task.size, [])  # sizes used last come last
        self._wanted = max(self._wanted, number + 1)
        if number == len(slots):
            self._make_room(used)
            task = flat_task.task
            slots.append(self._make_slot(self.trainer, task.part, flat_task.sub, task.width))
        return slots[number]

    def _let_go_of_oldest(self, needed: set[Size]) -> None:
        """Let go of the slots of other sizes that were not used for longest, if there would be too many sizes."""
        others = [size for size in self._slots if size not in needed]
        oldest = others[: max(0, len(others) + len(needed) - MAX_SIZES)]

        def release() -> None:
            for size in oldest:
                del self._slots[size]

        if oldest:
            free_memory(self.device, release)

    def _make_room(self, used: dict[Size, int]) -> None:
        """Let go of the slots that the wave does not use, if there may be no more slots than there are."""

        def release() -> None:
            for size, slots in self._slots.items():
                del slots[used.get(size, 0) :]

        if sum(map(len, self._slots.values())) >= self.in_all:
            free_memory(self.device, release)

    def shrink(self) -> None:
        """Go on without batches gathered ahead; then with half the slots, of each size and at last of all together."""
        self.has_shrunk = True
        if self.batches_ahead:
            free_memory(self.device, self.batches_ahead.stop)
            return
        if self.per_size > 1:
            self.per_size = max(1, min(self.per_size, self._wanted) // 2)
            left = f"{self.per_size} a width"
        else:
            self.in_all = max(1, min(self.in_all, sum(map(len, self._slots.values()))) // 2)
            left = f"{self.in_all} for all widths together"
        free_memory(self.device, self._slots.clear)
        warnings.warn(f"out of memory on {self.device}: the cuda engine goes on with fewer slots, {left}", stacklevel=2)

    def _train_wave(self, wave: Wave) -> list[Batches]:
        """Queue the whole training of a wave's clients, each on its slot's stream; returns their batches."""
        taken = self.batches_ahead.take([flat_task for flat_task, _ in wave])
        batches = [with_rows_given(flat_task, own) for (flat_task, _), own in zip(wave, taken, strict=True)]
        work = [
            (flat_task, slot, own, slot.kinds(own, flat_task.order.widths))
            for (flat_task, slot), own in zip(wave, batches, strict=True)
        ]
        # Launching a graph of hundreds of kernels keeps a processor busy for longer than narrow models need to train,
        # and happens outside Python's lock: several threads launch side by side.
        started: list[Future[None]] = []
        at_once = all(slot.has_captured(kinds) for _, slot, _, kinds in work)
        try:
            for flat_task, slot, own, kinds in work:
                with (
                    error_context("train", flat_task.round, flat_task.task, run=flat_task.run),
                    slot.stream.queue(),
                ):
                    _begin(flat_task, slot)
                    slot.capture_steps(own, kinds)
                if at_once:
                    started += self._launch(flat_task, slot, own, kinds)
            if not at_once:  # capturing a graph must not meet other threads' work
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()  # what the steps before the captures took, on streams of their own
                for each in work:
                    started += self._launch(*each)
            wait(started)
            for future in started:
                future.result()
        except BaseException:
            wait(started)  # the others still use their slots, and what they read must live until they have done so
            self._join(wave)
            raise
        for _, slot in wave:
            slot.done = slot.stream.mark()
        return batches

    def _launch(self, flat_task: FlatTask, slot: Slot, batches: Batches, kinds: Sequence[Kind]) -> list[Future[None]]:
        """Train a client, on a GPU in a thread of its own; returns what must be waited for."""
        if self._threads is not None:
            return [self._threads.submit(_train, flat_task, slot, batches, kinds)]
        seed_host(_seed_of(flat_task))  # on a GPU nothing draws on the processor: such models are not captured
        _train(flat_task, slot, batches, kinds)
        return []

    def _join(self, wave: Wave) -> None:
        """Let whatever the caller's stream does from here on come after the wave's training."""
        for _, slot in wave:
            slot.stream.join(slot.done)
            slot.done = None


def _begin(flat_task: FlatTask, slot: Slot) -> None:
    """Put a client into its slot."""
    slot.begin(
        flat_task.start,
        learning_rate=flat_task.learning_rate,
        absent=flat_task.order.absent,
        seed=_seed_of(flat_task),
        others=flat_task.others,
        sent=flat_task.sent,
        steps=flat_task.order.steps,
    )
    slot.client.place(flat_task.trainer, flat_task.task.part, flat_task.round, flat_task.order.widths)


def _seed_of(flat_task: FlatTask) -> int:
    """The seed of what a client's layers draw."""
    return dropout_seed(flat_task.trainer.settings.seed, flat_task.round, flat_task.task.client)


def _train(flat_task: FlatTask, slot: Slot, batches: Batches, kinds: Sequence[Kind]) -> None:
    """Train the client that is in a slot."""
    with error_context("train", flat_task.round, flat_task.task, run=flat_task.run):
        slot.train_all(batches, kinds, flat_task.order.probes)


def _update_of(flat_task: FlatTask, slot: Slot) -> FlatUpdate:
    """What the client in a slot has made of its task."""
    others = {name: slot.others[name] for name in flat_task.others}
    return FlatUpdate(flat_task, slot.flat, slot.loss_sum, others, slot.reports())


def _check_finite(trained: Sequence[TrainedSlot]) -> None:
    """Refuse clients whose values are not finite, naming the first; the device is asked once where all are."""
    slots = [one.slot for one in trained]
    try:
        check_finite([slot.flat for slot in slots], [slot.sub for slot in slots], [one.task.client for one in trained])
    except UpdateError:
        for one in trained:
            with error_context("add", one.round, one.task, run=one.run):
                check_finite([one.slot.flat], [one.slot.sub], [one.task.client])
