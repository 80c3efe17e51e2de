"""Many clients at once on one GPU: a slot, a stream and a captured step for each.

Sub-models of one size take turns in slots of that size. All batches of a round are gathered and augmented in one go on
the device; the updates are averaged in task order, so the number of slots changes no bit. On the CPU the same code runs
without graphs and streams, which is how it is tested where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedwidth.aggregation import CohortSum, weigh
from fedwidth.client import Trainer, absent_classes, batches, learning_rate
from fedwidth.engines.flat import FlatState, Layout, SubLayout
from fedwidth.engines.flat_sums import FlatSum, check_finite
from fedwidth.engines.slot import Slot
from fedwidth.methods import Task
from fedwidth.methods.definition import average
from fedwidth.models import StaticBatchNorm2d, set_scaler
from fedwidth.narrow import skeleton
from fedwidth.randomness import torch_generator
from fedwidth.rounds import Report

LAUNCHERS = 10
"""Threads that launch captured steps."""

Size = tuple[float, tuple[tuple[str, int], ...]]
"""Capacity (the scaler's rate is part of a captured step) and units kept per group."""


def size_of(task: Task) -> Size:
    """What slots are pooled by."""
    return task.capacity, tuple(task.index.counts.items())


@dataclass(frozen=True)
class Staged:
    """A client's batches, ready on the device."""

    inputs: list[Tensor]
    targets: list[Tensor]

    @property
    def passes(self) -> int:
        """Samples seen."""
        return sum(len(batch) for batch in self.inputs)


class CudaEngine:
    """Trains clients side by side in slots."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.device = trainer.device
        self.slots_per_size = trainer.settings.slots
        self.layout: Layout | None = None
        self._subs: dict[Size, SubLayout] = {}
        self._labels: dict[Size, Tensor] = {}
        self._slots: dict[Size, list[Slot]] = {}
        self._where: dict[str, Tensor] = {}
        self._threads = ThreadPoolExecutor(LAUNCHERS) if self.device.type == "cuda" else None

    def run(self, state: Mapping[str, Tensor], tasks: Sequence[Task], round: int) -> tuple[list[CohortSum], Report]:
        """Train in waves: as many clients at a time as there are slots of their sizes."""
        flat = self._flatten(state)
        sums = self._make_sums(tasks)
        subs = {key: torch.index_select(flat.flat, 0, cohort.where) for key, cohort in sums.items()}
        staged = self._stage(tasks, round)
        losses: list[Tensor] = []
        passes: list[int] = []
        for wave in self._waves(tasks):
            slots = [slot for _, slot in wave]
            self._train([(slot, tasks[number], staged[number]) for number, slot in wave], subs, round)
            if self.device.type == "cuda":
                for slot in slots:
                    torch.cuda.current_stream().wait_stream(slot.stream)  # type: ignore[arg-type]
            check_finite([s.flat for s in slots], [s.sub for s in slots], [tasks[n].client for n, _ in wave])
            for number, slot in wave:
                self._add(sums[tasks[number].index.key], slot, tasks[number], len(staged[number].inputs))
                losses.append(slot.loss_sum / len(staged[number].inputs))
                passes.append(staged[number].passes)
        if self.trainer.method.aggregate_with is not average:
            for cohort in sums.values():
                cohort.open()
        return list(sums.values()), Report(tuple(passes), tuple(torch.stack(losses).tolist()))

    def close(self) -> None:
        """Give the device's memory back."""
        self._slots.clear()
        self._subs.clear()
        self._where.clear()
        if self._threads is not None:
            self._threads.shutdown()

    def _flatten(self, state: Mapping[str, Tensor]) -> FlatState:
        if self.layout is None:
            self.layout = Layout(self.trainer.plan, state, next(self.trainer.model.parameters()).dtype)
        return self.layout.flatten(state)

    def _make_sums(self, tasks: Sequence[Task]) -> dict[str, FlatSum]:
        """An empty sum per index, with the positions it holds."""
        sums: dict[str, FlatSum] = {}
        for task in tasks:
            index = task.index
            if index.key in sums:
                continue
            size = size_of(task)
            if size not in self._subs:
                assert self.layout is not None
                self._subs[size] = SubLayout(self.layout, index, self.device)
            sub = self._subs[size]
            where = self._where[index.key] if index.key in self._where else sub.where(index)
            sums[index.key] = FlatSum(index, sub, where)
        self._where = {key: cohort.where for key, cohort in sums.items()}  # kept for methods whose windows stay
        return sums

    def _stage(self, tasks: Sequence[Task], round: int) -> list[Staged]:
        """All batches of all clients: the serial engine's order and draws, gathered and augmented in one go."""
        trainer, settings = self.trainer, self.trainer.settings.training
        transform, split = trainer.data.transform, trainer.data.train
        sizes, samples, draws = [], [], []
        for task in tasks:
            order = torch_generator(trainer.settings.seed, "order", round, task.client)
            augment = torch_generator(trainer.settings.seed, "augment", round, task.client)
            own = list(batches(trainer.partition[task.client], settings, order))
            sizes.append([len(batch) for batch in own])
            samples += own
            if settings.augment and transform.augments:
                draws += [transform.draw(len(batch), augment) for batch in own]
        chosen = torch.cat(samples).to(self.device, non_blocking=True)
        drawn = torch.cat(draws).to(self.device, non_blocking=True) if draws else None
        inputs = transform(split.inputs[chosen], drawn is not None, draws=drawn)
        targets = split.targets[chosen].long()
        lengths = [n for own in sizes for n in own]
        input_batches, target_batches = iter(torch.split(inputs, lengths)), iter(torch.split(targets, lengths))
        return [Staged([next(input_batches) for _ in own], [next(target_batches) for _ in own]) for own in sizes]

    def _waves(self, tasks: Sequence[Task]) -> list[list[tuple[int, Slot]]]:
        """Tasks in order, each with a slot of its size; a wave ends when a size has no free slot left."""
        waves: list[list[tuple[int, Slot]]] = [[]]
        used: dict[Size, int] = {}
        for number, task in enumerate(tasks):
            size = size_of(task)
            if used.get(size, 0) == self.slots_per_size:
                waves.append([])
                used = {}
            waves[-1].append((number, self._slot(size, used.get(size, 0))))
            used[size] = used.get(size, 0) + 1
        return waves

    def _slot(self, size: Size, place: int) -> Slot:
        slots = self._slots.setdefault(size, [])
        if place == len(slots):
            trainer = self.trainer
            module = skeleton(trainer.model, trainer.plan, dict(size[1])).to(self.device)
            set_scaler(module, size[0] if trainer.settings.training.scaler else 1.0)
            slots.append(
                Slot(
                    module,
                    self._subs[size],
                    trainer.settings.training,
                    classes=trainer.data.classes,
                    device=self.device,
                    precision=trainer.settings.precision,
                )
            )
        return slots[place]

    def _train(self, wave: Sequence[tuple[Slot, Task, Staged]], subs: Mapping[str, Tensor], round: int) -> None:
        """Queue the whole training of a wave's clients, each on its slot's stream."""
        trainer, settings = self.trainer, self.trainer.settings
        rate = learning_rate(settings.training, round, settings.rounds)
        for slot, task, staged in wave:
            labels = trainer.partition.labels[task.client]
            absent = absent_classes(labels, trainer.data.classes, settings.training.mask, self.device)
            with slot.queue():
                slot.begin(subs[task.index.key], learning_rate=rate, absent=absent)
                slot.prepare(staged.inputs, staged.targets)  # capturing a graph must not meet other threads' work
        if self._threads is None:
            for slot, _, staged in wave:
                slot.train_all(staged.inputs, staged.targets)
        else:
            # Launching a graph of hundreds of kernels keeps a processor busy for longer than narrow models need to
            # train, and happens outside Python's lock: several threads launch side by side.
            list(self._threads.map(lambda job: job[0].train_all(job[2].inputs, job[2].targets), wave))

    def _add(self, cohort: FlatSum, slot: Slot, task: Task, steps: int) -> None:
        """Add a trained client to its cohort."""
        trainer, settings = self.trainer, self.trainer.settings
        samples = len(trainer.partition[task.client])
        weight = weigh(settings.server.weighting, samples=samples, index=task.index, updates=steps)
        rows = None
        if settings.server.label_rows and trainer.plan.label_axes:
            labels = trainer.partition.labels[task.client]
            if len(labels) < trainer.data.classes:
                rows = self._rows(size_of(task), labels)
        cohort.add_flat(slot.flat, weight, rows)

    def _rows(self, size: Size, labels: Tensor) -> Tensor:
        """1 for every element of the sub-model, 0 for those that belong to a class the client lacks."""
        classes = self.trainer.data.classes
        if size not in self._labels:
            self._labels[size] = self._subs[size].labels(classes)
        table = torch.zeros(classes + 1, dtype=torch.float64)
        table[labels] = 1.0
        table[classes] = 1.0
        return table.to(self.device)[self._labels[size]]


def why_not(trainer: Trainer) -> str | None:
    """Why this engine cannot train a model, or None where it can."""
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
            return f"'{name}' cannot be captured"
        tracks = isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
        if tracks and not isinstance(module, StaticBatchNorm2d):
            return f"'{name}' tracks running statistics while it trains"
    return None
