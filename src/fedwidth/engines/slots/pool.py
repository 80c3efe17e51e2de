"""A crew of slots: many clients side by side on one GPU, each with a slot, a stream and a captured step.

On the CPU the same code runs without graphs and streams, which is how it is tested where there is no GPU. Where the
device has no memory left, the crew goes on with fewer slots: their number changes no bit of the result.
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

from fedwidth.core.index import Index
from fedwidth.engines.faults import free_memory, named, out_of_memory
from fedwidth.engines.flat.jobs import Done, Job, Order, Size
from fedwidth.engines.flat.sums import check_finite
from fedwidth.engines.slots.batches import Batches, Gathered
from fedwidth.engines.slots.making import channels_last, make_slot
from fedwidth.engines.slots.slot import Slot
from fedwidth.errors import UpdateError
from fedwidth.methods import Task
from fedwidth.training.client import Trainer, dropout_seed

LAUNCHERS = 10
"""Threads that launch captured steps."""

Wave = list[tuple[Job, Slot]]


class Sent(NamedTuple):
    """A trained client, without the vector it began with."""

    round: int
    task: Task
    run: str
    slot: Slot


class Slots:
    """Slots pooled by size; clients of one size take turns."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.device = trainer, trainer.device
        self.channels_last: Callable[[Index], bool] = partial(channels_last, trainer)
        self.per_size = trainer.settings.slots
        self.most = sys.maxsize
        """Slots of all sizes together; lowered where the device has no memory for one of each size."""
        self._wanted = 1
        """The most slots of one size that were asked for."""
        self._slots: dict[Size, list[Slot]] = {}
        self._threads = ThreadPoolExecutor(LAUNCHERS) if self.device.type == "cuda" else None
        self._gathered = Gathered()

    def train(self, jobs: Sequence[Job], meanwhile: Callable[[], None] | None = None) -> Iterator[Done]:
        """Train in waves: as many clients at a time as there are slots of their sizes.

        A wave that runs out of memory has given nothing back yet, so its clients can train again: each counts once.
        """
        left = list(jobs)
        del jobs  # what the caller has done with is gone before it asks for the last one
        while left:
            wave, batches = self._train_first(left)
            del left[: len(wave)]
            if not left:
                self._gathered.clear()  # a round that came otherwise than expected has left some
                try:
                    if meanwhile is not None:  # the caller's stream is still free: what it queues runs beside this
                        meanwhile()
                finally:
                    self._join(wave)
            else:
                self._join(wave)
            del batches  # the slots' streams have read them: their memory may go to the caller's
            sent = [Sent(job.round, job.task, job.run, slot) for job, slot in wave]
            while wave:  # what is done with results comes after the training, without anybody waiting
                yield _result(*wave.pop(0))
            _check_finite(sent)  # waits for the device
            sent.clear()  # the next wave may need the slots' memory

    def gather(self, trainer: Trainer, orders: Sequence[Order]) -> None:
        """Gather the batches of a round to come."""
        self._gathered.add(trainer, orders)

    @property
    def can_shrink(self) -> bool:
        """Whether there is more than one slot to do with, or something that was made ahead."""
        return (self.per_size, self.most) != (1, 1) or len(self._gathered) > 0

    def close(self) -> None:
        """Give memory and threads back."""
        if self._threads is not None:
            self._threads.shutdown()
        self._gathered.clear()
        with suppress(RuntimeError):  # what broke the device was said already
            free_memory(self.device, self._slots.clear)
        self._slots.clear()

    def _train_first(self, jobs: Sequence[Job]) -> tuple[Wave, list[Batches]]:
        """Queue the training of as many of the first jobs as there are slots for; also what must live until then."""
        while True:
            wave: Wave = []
            try:
                wave.extend(self._places(jobs))
                return wave, self._train_wave(wave)
            except Exception as error:
                if not out_of_memory(error) or not self.can_shrink:
                    raise
            # Only here is the exception gone, and with it the tensors of the step that failed.
            wave.clear()
            self.shrink()

    def _places(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Slot]]:
        """Jobs in order, each with a slot of its size, until a size has no free slot left."""
        used: dict[Size, int] = {}
        for number, job in enumerate(jobs):
            place = used.get(job.size, 0)
            if place == self.per_size or number == self.most:
                return
            used[job.size] = place + 1
            with named("train", job.round, job.task, run=job.run):
                yield job, self._slot(job, place, used)

    def _slot(self, job: Job, place: int, used: dict[Size, int]) -> Slot:
        slots = self._slots.setdefault(job.size, [])
        self._wanted = max(self._wanted, place + 1)
        if place == len(slots):
            self._make_room(used)
            slots.append(make_slot(self.trainer, job.task.index.counts, job.sub, job.task.capacity))
        return slots[place]

    def _make_room(self, used: dict[Size, int]) -> None:
        """Let go of slots the wave does not use, if there may be no more of them."""

        def release() -> None:
            for size, slots in self._slots.items():
                del slots[used.get(size, 0) :]

        if sum(map(len, self._slots.values())) >= self.most:
            free_memory(self.device, release)

    def shrink(self) -> None:
        """Go on with nothing made ahead; then with half the slots: of each size, and of all sizes together."""
        if self._gathered:
            free_memory(self.device, self._gathered.stop)
            return
        if self.per_size > 1:
            self.per_size = max(1, min(self.per_size, self._wanted) // 2)
            left = f"{self.per_size} a width"
        else:
            self.most = max(1, min(self.most, sum(map(len, self._slots.values()))) // 2)
            left = f"{self.most} for all widths together"
        free_memory(self.device, self._slots.clear)
        warnings.warn(f"out of memory on {self.device}: the cuda engine goes on with fewer slots, {left}", stacklevel=2)

    def _train_wave(self, wave: Wave) -> list[Batches]:
        """Queue the whole training of a wave's clients, each on its slot's stream; their batches."""
        batches = self._gathered.take([job for job, _ in wave])
        work = [(job, slot, own) for (job, slot), own in zip(wave, batches, strict=True)]
        # Launching a graph of hundreds of kernels keeps a processor busy for longer than narrow models need to train,
        # and happens outside Python's lock: several threads launch side by side.
        started: list[Future[None]] = []
        at_once = all(slot.is_prepared(own) for _, slot, own in work)
        try:
            for job, slot, own in work:
                with named("train", job.round, job.task, run=job.run), slot.place.queue():
                    seed = dropout_seed(job.trainer.settings.seed, job.round, job.task.client)
                    slot.begin(
                        job.start,
                        learning_rate=job.learning_rate,
                        absent=job.order.absent,
                        seed=seed,
                        others=job.others,
                        sent=job.sent,
                        steps=job.order.steps,
                    )
                    slot.prepare(own)
                if at_once:
                    started += self._launch(job, slot, own)
            if not at_once:  # capturing a graph must not meet other threads' work
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()  # what the steps before the captures took, on streams of their own
                for job, slot, own in work:
                    started += self._launch(job, slot, own)
        finally:
            wait(started)  # also where one has failed: the others still use their slots
        for future in started:
            future.result()
        return batches

    def _launch(self, job: Job, slot: Slot, batches: Batches) -> list[Future[None]]:
        if self._threads is not None:
            return [self._threads.submit(_train, job, slot, batches)]
        _train(job, slot, batches)
        return []

    def _join(self, wave: Wave) -> None:
        """Whatever the caller's stream does from here on comes after the wave's training."""
        for _, slot in wave:
            slot.place.join()


def _result(job: Job, slot: Slot) -> Done:
    others = {name: slot.others[name] for name in job.others}
    return Done(job, slot.flat, slot.loss_sum, others, slot.reports())


def _train(job: Job, slot: Slot, batches: Batches) -> None:
    with named("train", job.round, job.task, run=job.run):
        slot.train_all(batches, job.order.probes)


def _check_finite(sent: Sequence[Sent]) -> None:
    """Refuse what is not finite, naming the client: one answer from the device for all, more only if it is no."""
    slots = [one.slot for one in sent]
    try:
        check_finite([slot.flat for slot in slots], [slot.sub for slot in slots], [one.task.client for one in sent])
    except UpdateError:
        for one in sent:
            with named("add", one.round, one.task, run=one.run):
                check_finite([one.slot.flat], [one.slot.sub], [one.task.client])
