"""A crew of stacks: clients of one size train as one batch of models (`torch.func.vmap` over the skeleton).

Best for many small models, on the CPU too: a step of a hundred narrow networks costs little more than a step of one.
Where the model has no batch norm, clients with fewer samples join in: missing samples get targets that are ignored,
and a client that is done keeps its weights. With batch norm only clients with equal batches share a stack, because
padding would change the batch statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedwidth.client import Trainer, masked_loss
from fedwidth.data import IGNORE
from fedwidth.engines.flat_sums import check_finite
from fedwidth.engines.jobs import Done, Job, Size
from fedwidth.engines.optimise import Vectors, clip, step
from fedwidth.models import set_scaler
from fedwidth.narrow import skeleton

MOST_GRAPHED = 64
"""Stacks whose captured step is kept."""


class Stacks:
    """Stacks of clients, made for the jobs at hand."""

    channels_last = False

    def __init__(self, trainer: Trainer) -> None:
        self.coupled = any(isinstance(m, nn.modules.batchnorm._NormBase) for m in trainer.model.modules())
        self._stacks: dict[object, Stack] = {}

    def train(self, jobs: Sequence[Job]) -> Iterator[Done]:
        """Group the jobs by shape, train each group as one, and give them back in the order given."""
        groups: dict[tuple[Size, tuple[int, ...] | None], list[int]] = {}
        for number, job in enumerate(jobs):
            groups.setdefault((job.size, job.lengths if self.coupled else None), []).append(number)
        done: dict[int, Done] = {}
        for shape, numbers in groups.items():
            members = [jobs[n] for n in numbers]
            stack = self._stack((shape, len(members)), members)
            stack.train(members)
            rows = stack.vectors.flat.unbind()
            check_finite(rows, [job.sub for job in members], [job.task.client for job in members])
            for number, row, loss in zip(numbers, rows, stack.loss_sum, strict=True):
                done[number] = Done(jobs[number], row, loss)
        yield from (done[number] for number in range(len(jobs)))

    def close(self) -> None:
        """Give memory back."""
        self._stacks.clear()

    def _stack(self, key: object, members: Sequence[Job]) -> Stack:
        if key not in self._stacks:
            if len(self._stacks) >= MOST_GRAPHED:
                self._stacks.clear()
            self._stacks[key] = Stack(members[0], len(members))
        return self._stacks[key]


class Stack:
    """`clients` models of one size, their vectors the rows of one matrix [clients, n]."""

    def __init__(self, job: Job, clients: int) -> None:
        trainer = job.trainer
        self.settings, self.device = trainer.settings.training, trainer.device
        self.module = skeleton(trainer.model, trainer.plan, job.task.index.counts).to(self.device).train()
        set_scaler(self.module, job.task.capacity if self.settings.scaler else 1.0)
        names = [name for name, _ in self.module.named_parameters()]
        dtype = job.sub.layout.dtype
        mark = job.sub.mark(names).to(self.device)
        self.vectors = Vectors.zeros((clients, job.sub.size), mark, dtype=dtype, device=self.device)
        self.loss_sum = torch.zeros(clients, dtype=dtype, device=self.device)
        self.absent = torch.zeros(clients, trainer.data.classes, dtype=torch.bool, device=self.device)
        self.tensors = job.sub.views(self.vectors.flat)
        self.names = names
        gradients = job.sub.views(self.vectors.gradient)
        self.gradients = [gradients[name] for name in names]
        self.graphs: dict[tuple[object, ...], _Captured] = {}

    def train(self, jobs: Sequence[Job]) -> None:
        """Train these clients to the end."""
        torch.stack([job.start for job in jobs], out=self.vectors.flat)
        self.vectors.reset()
        self.loss_sum.zero_()
        rates = torch.tensor([[job.learning_rate] for job in jobs], dtype=self.vectors.flat.dtype)
        self.vectors.learning_rate.copy_(rates)
        for row, job in zip(self.absent, jobs, strict=True):
            row.zero_() if job.absent is None else row.copy_(job.absent)
        inputs, targets, active = _pad(jobs)
        for number in range(len(inputs)):
            self._take_step(inputs[number], targets[number], active[number])

    def _take_step(self, inputs: Tensor, targets: Tensor, active: Tensor | None) -> None:
        if self.device.type != "cuda":
            self._step(inputs, targets, active)
            return
        key = (tuple(inputs.shape), active is None)
        if key not in self.graphs:
            held = _Captured(inputs.clone(), targets.clone(), None if active is None else active.clone())
            held.graph = self._capture(held.inputs, held.targets, held.active)
            self.graphs[key] = held
        captured = self.graphs[key]
        captured.inputs.copy_(inputs)
        captured.targets.copy_(targets)
        if active is not None and captured.active is not None:
            captured.active.copy_(active)
        captured.graph.replay()

    def _capture(self, inputs: Tensor, targets: Tensor, active: Tensor | None) -> torch.cuda.CUDAGraph:
        """Record the step on a side stream; warm-up steps really train, so the vectors are put back afterwards."""
        held = [self.vectors.flat, self.vectors.first, self.vectors.second, self.vectors.steps, self.loss_sum]
        before = [tensor.clone() for tensor in held]
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step(inputs, targets, active)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(inputs, targets, active)
        for tensor, value in zip(held, before, strict=True):
            tensor.copy_(value)
        return graph

    def _step(self, inputs: Tensor, targets: Tensor, active: Tensor | None) -> None:
        """One step of every client; those that are not active (None: all are) stay as they are."""
        parameters = {name: self.tensors[name] for name in self.names}
        buffers = {name: tensor for name, tensor in self.tensors.items() if name not in parameters}

        def loss_of(own: dict[str, Tensor], rest: dict[str, Tensor], x: Tensor, y: Tensor, lacks: Tensor) -> Tensor:
            logits = functional_call(self.module, {**own, **rest}, (x,))
            return masked_loss(logits, y, lacks, self.settings.mask)

        found, losses = vmap(grad_and_value(loss_of))(parameters, buffers, inputs, targets, self.absent)
        vectors = self.vectors
        changing = (vectors.flat, vectors.first, vectors.second, vectors.steps)
        before = [] if active is None else [tensor.clone() for tensor in changing]
        torch._foreach_copy_(self.gradients, [found[name] for name in self.names])
        if self.settings.clip:
            clip(vectors, self.settings.clip)
        step(vectors, self.settings)
        losses = losses.to(self.loss_sum.dtype)
        if active is not None:
            for tensor, old in zip(changing, before, strict=True):
                tensor.copy_(torch.where(active, tensor, old))
            losses = torch.where(active[:, 0], losses, 0.0)
        self.loss_sum += losses


@dataclass
class _Captured:
    """A captured step and the tensors it reads."""

    inputs: Tensor
    targets: Tensor
    active: Tensor | None
    graph: Any = None


def _pad(jobs: Sequence[Job]) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
    """Per step: inputs [clients, batch, …], targets with ignored ones where a sample is missing, who takes part."""
    inputs, targets = [], []
    active: list[Tensor | None] = []
    for number in range(max(len(job.inputs) for job in jobs)):
        present = [number < len(job.inputs) for job in jobs]
        samples = [job.inputs[number] if here else job.inputs[0][:0] for job, here in zip(jobs, present, strict=True)]
        answers = [job.targets[number] if here else job.targets[0][:0] for job, here in zip(jobs, present, strict=True)]
        largest = max(len(batch) for batch in samples)
        inputs.append(torch.stack([_fill(batch, largest, 0) for batch in samples]))
        targets.append(torch.stack([_fill(batch, largest, IGNORE) for batch in answers]))
        active.append(None if all(present) else torch.tensor(present, device=inputs[-1].device)[:, None])
    return inputs, targets, active


def _fill(batch: Tensor, length: int, value: int) -> Tensor:
    if len(batch) == length:
        return batch
    return torch.cat([batch, batch.new_full((length - len(batch), *batch.shape[1:]), value)])
