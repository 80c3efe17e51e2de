"""A crew of stacks: clients of one size train as one batch of models (`torch.func.vmap` over the skeleton).

Best for many small models, on the CPU too: a step of a hundred narrow networks costs little more than a step of one.
Where the model has no batch norm, clients with fewer samples join in: missing samples get targets that are ignored,
and a client that is done keeps its weights. With batch norm only clients with equal batches share a stack, because
padding would change the batch statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.utils.rnn import pad_sequence

from fedwidth.client import Trainer, masked_loss
from fedwidth.data import IGNORE
from fedwidth.engines.flat_sums import check_finite
from fedwidth.engines.jobs import NOBODY, Done, Job, Size
from fedwidth.engines.optimise import Vectors, clip, step
from fedwidth.models import set_scaler
from fedwidth.narrow import skeleton

MOST_GRAPHED = 64
"""Stacks whose captured step is kept."""


class Stacks:
    """Stacks of clients, made for the jobs at hand."""

    channels_last = False

    def __init__(self, trainer: Trainer) -> None:
        self.coupled = couples_samples(trainer.model)
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


def couples_samples(model: nn.Module) -> bool:
    """Whether a sample's output depends on the others of its batch, so that missing samples cannot be filled in."""
    return any(isinstance(module, nn.modules.batchnorm._NormBase) for module in model.modules())


class Stack:
    """`clients` models of one size, their vectors the rows of one matrix [clients, n].

    The order of all samples of a round lies on the device and each step gathers its own, so that a captured step is
    replayed without copying anything to it.
    """

    def __init__(self, job: Job, clients: int) -> None:
        trainer = job.trainer
        self.data, self.settings, self.device = trainer.data, trainer.settings.training, trainer.device
        self.module = skeleton(trainer.model, trainer.plan, job.task.index.counts).to(self.device).train()
        set_scaler(self.module, job.task.capacity if self.settings.scaler else 1.0)
        self.names = [name for name, _ in self.module.named_parameters()]
        dtype = job.sub.layout.dtype
        mark = job.sub.mark(self.names).to(self.device)
        self.vectors = Vectors.zeros((clients, job.sub.size), mark, dtype=dtype, device=self.device)
        self.loss_sum = torch.zeros(clients, dtype=dtype, device=self.device)
        self.absent = torch.zeros(clients, trainer.data.classes, dtype=torch.bool, device=self.device)
        self.tensors = job.sub.views(self.vectors.flat)
        gradients = job.sub.views(self.vectors.gradient)
        self.gradients = [gradients[name] for name in self.names]
        self.number = torch.zeros(1, dtype=torch.long, device=self.device)
        self.order = torch.empty(0, dtype=torch.long)
        self.draws: Tensor | None = None
        self.graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}

    def train(self, jobs: Sequence[Job]) -> None:
        """Train these clients to the end."""
        torch.stack([job.start for job in jobs], out=self.vectors.flat)
        self.vectors.reset()
        self.loss_sum.zero_()
        self.number.zero_()
        rates = torch.tensor([[job.learning_rate] for job in jobs], dtype=self.vectors.flat.dtype)
        self.vectors.learning_rate.copy_(rates)
        none = torch.zeros_like(self.absent[0])
        self.absent.copy_(torch.stack([none if job.absent is None else job.absent for job in jobs]))
        order = pad_sequence([job.order for job in jobs], batch_first=True, padding_value=NOBODY)
        draws = [job.draws for job in jobs if job.draws is not None]
        self._hold(order, pad_sequence(draws, batch_first=True) if draws else None)
        lengths = (order != NOBODY).sum(2)
        for longest, everybody in zip(lengths.amax(0).tolist(), (lengths > 0).all(0).tolist(), strict=True):
            self._take_step(longest, everybody)

    def _hold(self, order: Tensor, draws: Tensor | None) -> None:
        """Put the order [clients, steps, batch] where the captured steps read it, or forget them if it does not fit."""
        if self.order.shape != order.shape:
            self.order, self.graphs = order.to(self.device), {}
            self.draws = None if draws is None else draws.to(self.device)
            return
        self.order.copy_(order)
        if draws is not None and self.draws is not None:
            self.draws.copy_(draws)

    def _take_step(self, longest: int, everybody: bool) -> None:
        if self.device.type != "cuda":
            self._step(longest, everybody)
            return
        if (longest, everybody) not in self.graphs:
            self.graphs[longest, everybody] = self._capture(longest, everybody)
        self.graphs[longest, everybody].replay()

    def _capture(self, longest: int, everybody: bool) -> torch.cuda.CUDAGraph:
        """Record the step on a side stream; warm-up steps really train, so the vectors are put back afterwards."""
        vectors = self.vectors
        held = [vectors.flat, vectors.first, vectors.second, vectors.steps, self.loss_sum, self.number]
        before = [tensor.clone() for tensor in held]
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._step(longest, everybody)
                self.number.copy_(before[-1])
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(longest, everybody)
        for tensor, value in zip(held, before, strict=True):
            tensor.copy_(value)
        return graph

    def _batch(self, longest: int) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs [clients, batch, …], targets with ignored ones where a sample is missing, and who takes part."""
        order = self.order.index_select(1, self.number)[:, 0, :longest]
        present = order != NOBODY
        chosen = order.clamp(min=0).flatten()
        draws = None
        if self.draws is not None:
            draws = self.draws.index_select(1, self.number)[:, 0, :longest].flatten(0, 1)
        split = self.data.train
        inputs = self.data.transform(split.inputs[chosen], draws is not None, draws=draws)
        targets = torch.unflatten(split.targets[chosen].long(), 0, order.shape)
        missing = ~present.view(*order.shape, *[1] * (targets.dim() - 2))
        return (
            torch.unflatten(inputs, 0, order.shape),
            targets.masked_fill(missing, IGNORE),
            present.any(1, keepdim=True),
        )

    def _step(self, longest: int, everybody: bool) -> None:
        """One step of every client; those that have no batch left stay as they are."""
        inputs, targets, active = self._batch(longest)
        parameters = {name: self.tensors[name] for name in self.names}
        buffers = {name: tensor for name, tensor in self.tensors.items() if name not in parameters}

        def loss_of(own: dict[str, Tensor], rest: dict[str, Tensor], x: Tensor, y: Tensor, lacks: Tensor) -> Tensor:
            logits = functional_call(self.module, {**own, **rest}, (x,))
            return masked_loss(logits, y, lacks, self.settings.mask)

        found, losses = vmap(grad_and_value(loss_of))(parameters, buffers, inputs, targets, self.absent)
        vectors = self.vectors
        changing = (vectors.flat, vectors.first, vectors.second, vectors.steps)
        before = [] if everybody else [tensor.clone() for tensor in changing]
        torch._foreach_copy_(self.gradients, [found[name] for name in self.names])
        if self.settings.clip:
            clip(vectors, self.settings.clip)
        step(vectors, self.settings)
        losses = losses.to(self.loss_sum.dtype)
        if not everybody:
            for tensor, old in zip(changing, before, strict=True):
                tensor.copy_(torch.where(active, tensor, old))
            losses = torch.where(active[:, 0], losses, 0.0)
        self.loss_sum += losses
        self.number += 1
