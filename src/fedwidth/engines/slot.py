"""A place on the device where one client at a time trains: a module, its vectors, and its captured step.

All tensors keep their addresses, so that a CUDA graph of the step (forward, backward, clipping, optimiser: hundreds of
kernels) can be captured once and replayed for every client and batch. The optimiser works on the one vector the
parameters are views of, instead of on a hundred tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.client import masked_loss
from fedwidth.engines.flat import SubLayout
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
        self.flat = torch.zeros(sub.size, dtype=sub.layout.dtype, device=device)
        self.gradient = torch.zeros_like(self.flat)
        self.first, self.second = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.step_number = torch.zeros((), dtype=self.flat.dtype, device=device)
        self.learning_rate = torch.zeros((), dtype=self.flat.dtype, device=device)
        self.loss_sum = torch.zeros((), dtype=self.flat.dtype, device=device)
        self.absent = torch.zeros(classes, dtype=torch.bool, device=device)
        views = sub.views(self.flat)
        _adopt(module, views)
        self.parameters = list(module.parameters())
        by_address = {views[name].data_ptr(): name for name in views}
        gradients = sub.views(self.gradient)
        self.gradients = [gradients[by_address[p.data_ptr()]] for p in self.parameters]
        # Weight decay and clipping concern parameters only; buffers share the vector and must not move.
        trainable = torch.zeros_like(self.flat)
        names = {by_address[p.data_ptr()] for p in self.parameters}
        for name, view in sub.views(trainable).items():
            if name in names:
                view.fill_(1.0)
        self.trainable = None if bool(trainable.all()) else trainable
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.graphs: dict[int, tuple[Tensor, Tensor, torch.cuda.CUDAGraph]] = {}
        """By batch size: where the step reads its batch and targets, and the captured step."""

    def begin(self, flat: Tensor, *, learning_rate: float, absent: Tensor | None) -> None:
        """Take over a client: its sub-model, the round's learning rate, the classes it lacks."""
        self.flat.copy_(flat)
        for tensor in (self.first, self.second, self.step_number, self.loss_sum):
            tensor.zero_()
        self.learning_rate.fill_(learning_rate)
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

    def prepare(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """Capture the steps these batches need, as far as that is worth it."""
        if self.stream is None:
            return
        for batch, answers in zip(inputs, targets, strict=True):
            size = len(batch)
            if size not in self.graphs and len(self.graphs) < MOST_GRAPHS:
                held = torch.empty_like(batch), torch.empty_like(answers)
                held[0].copy_(batch)
                held[1].copy_(answers)
                self.graphs[size] = (*held, self._capture(*held))

    def train_all(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """One local step on each of these batches."""
        with self.queue():
            for batch, answers in zip(inputs, targets, strict=True):
                if len(batch) not in self.graphs:
                    self._step(batch, answers)
                    continue
                held_batch, held_answers, graph = self.graphs[len(batch)]
                held_batch.copy_(batch)
                held_answers.copy_(answers)
                graph.replay()

    def _capture(self, inputs: Tensor, targets: Tensor) -> torch.cuda.CUDAGraph:
        """Record the step. Warm-up steps really train, so the client's vectors are put back afterwards."""
        held = [self.flat, self.first, self.second, self.step_number, self.loss_sum]
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
            self._clip()
            self._optimise()

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False)

    def _clip(self) -> None:
        """As torch.nn.utils.clip_grad_norm_: scale by clip / (norm + 1e-6) where that is below 1."""
        if self.settings.clip:
            norm = torch.linalg.vector_norm(self.gradient)
            self.gradient.mul_((self.settings.clip / (norm + 1e-6)).clamp(max=1.0))

    def _optimise(self) -> None:
        """SGD, Adam and AdamW with PyTorch's arithmetic, on the whole vector."""
        settings, decay = self.settings, self.settings.weight_decay
        weights = self.flat if self.trainable is None else self.flat * self.trainable
        if settings.optimiser == "sgd":
            change = self.gradient.add(weights, alpha=decay) if decay else self.gradient
            if settings.momentum:
                self.first.mul_(settings.momentum).add_(change)
                change = self.first
            self.flat.sub_(change * self.learning_rate)
            return
        if settings.optimiser == "adamw":
            self.flat.sub_(weights * (self.learning_rate * decay))
            change = self.gradient
        else:
            change = self.gradient.add(weights, alpha=decay) if decay else self.gradient
        self.step_number.add_(1)
        self.first.lerp_(change, 0.1)
        self.second.mul_(0.999).addcmul_(change, change, value=0.001)
        first_bias = 1 - torch.exp(self.step_number * math.log(0.9))
        second_bias = 1 - torch.exp(self.step_number * math.log(0.999))
        size = (self.second / second_bias).sqrt_().add_(1e-8)
        self.flat.sub_(self.first / size * (self.learning_rate / first_bias))


def _adopt(module: nn.Module, views: dict[str, Tensor]) -> None:
    """Make parameters and buffers of a module views of a vector; tied ones follow their first name."""
    for name, parameter in module.named_parameters():
        parameter.data = views[name]
    for name, _ in module.named_buffers():
        if name in views:
            owner, _, leaf = name.rpartition(".")
            module.get_submodule(owner)._buffers[leaf] = views[name]
