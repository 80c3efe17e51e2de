"""A crew of slots: many clients side by side on one GPU, each with a slot, a stream and a captured step.

On the CPU the same code runs without graphs and streams, which is how it is tested where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from fedwidth.client import Trainer
from fedwidth.engines.flat_sums import check_finite
from fedwidth.engines.jobs import Done, Job, Size, batches_of
from fedwidth.engines.slot import Slot
from fedwidth.models import StaticBatchNorm2d, set_scaler
from fedwidth.narrow import skeleton

LAUNCHERS = 10
"""Threads that launch captured steps."""


class Slots:
    """Slots pooled by size; clients of one size take turns."""

    channels_last = True

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.device = trainer, trainer.device
        self.per_size = trainer.settings.slots
        self._slots: dict[Size, list[Slot]] = {}
        self._threads = ThreadPoolExecutor(LAUNCHERS) if self.device.type == "cuda" else None

    def train(self, jobs: Sequence[Job]) -> Iterator[Done]:
        """Train in waves: as many clients at a time as there are slots of their sizes."""
        for wave in self._waves(jobs):
            self._train_wave(wave)
            slots = [slot for _, slot in wave]
            check_finite([s.flat for s in slots], [s.sub for s in slots], [job.task.client for job, _ in wave])
            yield from (Done(job, slot.flat, slot.loss_sum) for job, slot in wave)

    def close(self) -> None:
        """Give memory and threads back."""
        self._slots.clear()
        if self._threads is not None:
            self._threads.shutdown()

    def _waves(self, jobs: Sequence[Job]) -> list[list[tuple[Job, Slot]]]:
        """Jobs in order, each with a slot of its size; a wave ends when a size has no free slot left."""
        waves: list[list[tuple[Job, Slot]]] = [[]]
        used: dict[Size, int] = {}
        for job in jobs:
            if used.get(job.size, 0) == self.per_size:
                waves.append([])
                used = {}
            waves[-1].append((job, self._slot(job, used.get(job.size, 0))))
            used[job.size] = used.get(job.size, 0) + 1
        return waves

    def _slot(self, job: Job, place: int) -> Slot:
        slots = self._slots.setdefault(job.size, [])
        if place == len(slots):
            trainer = self.trainer
            module = skeleton(trainer.model, trainer.plan, job.task.index.counts).to(self.device)
            set_scaler(module, job.task.capacity if trainer.settings.training.scaler else 1.0)
            slots.append(
                Slot(
                    module,
                    job.sub,
                    trainer.settings.training,
                    classes=trainer.data.classes,
                    device=self.device,
                    precision=trainer.settings.precision,
                )
            )
        return slots[place]

    def _train_wave(self, wave: Sequence[tuple[Job, Slot]]) -> None:
        """Queue the whole training of a wave's clients, each on its slot's stream."""
        batches = batches_of([job for job, _ in wave])
        for (job, slot), own in zip(wave, batches, strict=True):
            with slot.queue():
                slot.begin(job.start, learning_rate=job.learning_rate, absent=job.absent)
                slot.prepare(own)  # capturing a graph must not meet other threads' work
        pairs = [(slot, own) for (_, slot), own in zip(wave, batches, strict=True)]
        if self._threads is None:
            for slot, own in pairs:
                slot.train_all(own)
            return
        # Launching a graph of hundreds of kernels keeps a processor busy for longer than narrow models need to train,
        # and happens outside Python's lock: several threads launch side by side.
        list(self._threads.map(lambda pair: pair[0].train_all(pair[1]), pairs))
        for _, slot in wave:
            torch.cuda.current_stream().wait_stream(slot.stream)  # type: ignore[arg-type]


def why_not(trainer: Trainer) -> str | None:
    """Why slots and stacks cannot train a model, or None where they can."""
    model = trainer.model
    if trainer.method.local_widths is not None:
        return f"{trainer.method.title} trains another width at every step"
    if len({p.dtype for p in model.parameters()}) > 1:
        return "its parameters have several dtypes"
    if not all(p.requires_grad for p in model.parameters()):
        return "some parameters are frozen"
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return f"'{name}' draws at random in every step"
        if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
            return f"'{name}' cannot be captured or stacked"
        tracks = isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
        if tracks and not isinstance(module, StaticBatchNorm2d):
            return f"'{name}' tracks running statistics while it trains"
    return None
