"""A place on the device where one client at a time trains: a module, its vectors, and its captured step.

All tensors keep their addresses, so that a CUDA graph of the step (forward, backward, clipping, optimiser: hundreds of
kernels) can be captured once and replayed for every client and batch. The optimiser works on the one vector the
parameters are views of, instead of on a hundred tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.client import masked_loss
from fedwidth.engines.flat import SubLayout
from fedwidth.engines.optimise import Vectors, clip, step
from fedwidth.settings import TrainingSettings

MOST_GRAPHS = 3
"""Batch sizes captured per slot (the full batch and common last batches); rarer ones run without a graph."""


class Slot:
    """One client's training, on its own stream."""

    def __init__(
        self,
        module: nn.Module,
        sub: SubLayout,
        settings: TrainingSettings,
        *,
        classes: int,
        device: torch.device,
        precision: str,
    ) -> None:
        self.module, self.sub, self.settings, self.precision = module.train(), sub, settings, precision
        self.device = device
        names = [name for name, _ in module.named_parameters()]
        dtype = sub.layout.dtype
        self.vectors = Vectors.zeros((sub.size,), sub.mark(names).to(device), dtype=dtype, device=device)
        self.flat = self.vectors.flat
        self.loss_sum = torch.zeros((), dtype=dtype, device=device)
        self.absent = torch.zeros(classes, dtype=torch.bool, device=device)
        _adopt(module, sub.views(self.flat))
        self.parameters = list(module.parameters())
        gradients = sub.views(self.vectors.gradient)
        self.gradients = [gradients[name] for name in names]
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.graphs: dict[int, tuple[Tensor, Tensor, torch.cuda.CUDAGraph]] = {}
        """By batch size: where the step reads its batch and targets, and the captured step."""

    def begin(self, flat: Tensor, *, learning_rate: float, absent: Tensor | None) -> None:
        """Take over a client: its sub-model, the round's learning rate, the classes it lacks."""
        self.flat.copy_(flat)
        self.vectors.reset()
        self.loss_sum.zero_()
        self.vectors.learning_rate.fill_(learning_rate)
        if absent is None:
            self.absent.zero_()
        else:
            self.absent.copy_(absent)

    def queue(self) -> AbstractContextManager[Any]:
        """Within it, work is queued on the slot's stream, after what the caller's stream holds so far."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self.stream)

    def prepare(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Capture the steps these batches need, as far as that is worth it."""
        if self.stream is None:
            return
        for batch, answers in batches:
            size = len(batch)
            if size not in self.graphs and len(self.graphs) < MOST_GRAPHS:
                held = batch.clone(), answers.clone()
                self.graphs[size] = (*held, self._capture(*held))

    def train_all(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """One local step on each of these batches."""
        with self.queue():
            for batch, answers in batches:
                if len(batch) not in self.graphs:
                    self._step(batch, answers)
                    continue
                held_batch, held_answers, graph = self.graphs[len(batch)]
                held_batch.copy_(batch)
                held_answers.copy_(answers)
                graph.replay()

    def _capture(self, inputs: Tensor, targets: Tensor) -> torch.cuda.CUDAGraph:
        """Record the step. Warm-up steps really train, so the client's vectors are put back afterwards."""
        held = [self.flat, self.vectors.first, self.vectors.second, self.vectors.steps, self.loss_sum]
        before = [tensor.clone() for tensor in held]
        for _ in range(3):
            self._step(inputs, targets)
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self._step(inputs, targets)
        for tensor, value in zip(held, before, strict=True):
            tensor.copy_(value)
        return graph

    def _step(self, inputs: Tensor, targets: Tensor) -> None:
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with self._autocast():
            loss = masked_loss(self.module(inputs), targets, self.absent, self.settings.mask)
        found = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            torch._foreach_copy_(self.gradients, list(found))
            self.loss_sum += loss.detach()
            if self.settings.clip:
                clip(self.vectors, self.settings.clip)
            step(self.vectors, self.settings)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False)


def _adopt(module: nn.Module, views: dict[str, Tensor]) -> None:
    """Make parameters and buffers of a module views of a vector; tied ones follow their first name."""
    for name, parameter in module.named_parameters():
        parameter.data = views[name]
    for name, _ in module.named_buffers():
        if name in views:
            owner, _, leaf = name.rpartition(".")
            module.get_submodule(owner)._buffers[leaf] = views[name]
