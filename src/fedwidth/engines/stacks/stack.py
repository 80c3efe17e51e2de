"""One stack: the vectors of clients of one size as the rows of one matrix, and the step that moves them all.

Rows are in order of their number of steps, most first, so that those still training are always the first ones: a step
is taken by a prefix of the rows. On a GPU the step of a prefix is captured once and replayed; there are a few prefixes,
and a row in one that has no step left (or no client at all) takes steps of length zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from fedwidth.capture import GraphStream, capture_graph
from fedwidth.engines.flat.layout import copy_to_device
from fedwidth.engines.flat.tensor_layout import TensorLayout
from fedwidth.engines.flat.vectors import changed_by_steps, make_vectors, reset, start_from, trained_names
from fedwidth.engines.stacks.gradients import client_channels_last, gradients_of, ignore_restriding
from fedwidth.engines.stacks.groups import StackClients, StackResult
from fedwidth.engines.stacks.layers import stack_layers
from fedwidth.engines.stacks.precision import stacked_autocast
from fedwidth.engines.stacks.samples import TrainingSamples
from fedwidth.methods import Task
from fedwidth.models import set_scaler
from fedwidth.training.client import Trainer
from fedwidth.training.loss import Pass
from fedwidth.training.step import report_of, take_step
from fedwidth.training.weights import Weights

MAX_PREFIXES = 16
"""The number of prefixes whose step is captured; the more, the fewer rows go along that have no step left."""


class Stack:
    """Trains up to `rows` clients of one size together."""

    def __init__(
        self,
        trainer: Trainer,
        task: Task,
        sub: TensorLayout,
        samples: TrainingSamples,
        *,
        rows: int,
        stream: GraphStream,
        stacked_layers: bool,
        merge: bool,
        given: Sequence[str] = (),
    ) -> None:
        self.settings, self.device, self.samples = trainer.settings.training, trainer.device, samples
        self.rule, self.capacity, self.objective = trainer.rule, task.capacity, trainer.objective
        self.precision, self.given = trainer.settings.precision, given
        module = task.part.module(trainer.model, trainer.plan).to(self.device).train()
        self.module = stack_layers(module, merge=merge) if stacked_layers else module
        set_scaler(self.module, task.width if self.settings.scaler else 1.0)
        self.names = trained_names(module)
        self.constants = task.plan(trainer.plan).scale_buffers
        self.sub, self.rows = sub, rows
        dtype = sub.dtype
        self.weights = make_vectors((rows, sub.size), sub, module, self.rule, self.settings, device=self.device)
        self.loss_sum = torch.zeros(rows, dtype=dtype, device=self.device)
        self.rates = torch.zeros(rows, 1, dtype=dtype, device=self.device)
        self.absent = torch.zeros(rows, trainer.data.classes, dtype=torch.bool, device=self.device)
        self._numbers = torch.zeros(3, rows, dtype=torch.long, device=self.device)
        self.first, self.steps, self.probes = self._numbers
        self.sizes = torch.ones(rows, dtype=dtype, device=self.device)
        self.number = torch.zeros((), dtype=torch.long, device=self.device)
        """The number of the coming step."""
        self._stream = stream
        self._prefixes: dict[int, Prefix] = {}
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}

    def train(self, starts: Tensor, clients: StackClients) -> StackResult:
        """Train clients from these vectors [clients, n] through all their steps.

        The result's tensors are views of the stack's; on a GPU their values are there after `join`.
        """
        with self._stream.queue():
            return self._train(starts, clients)

    def join(self) -> None:
        """Let whatever the caller's stream does from here on come after the training."""
        self._stream.join()

    def _train(self, starts: Tensor, clients: StackClients) -> StackResult:
        """Queue the training on the current stream."""
        number = len(starts)
        known = len(self.weights.sent)
        start_from(self.weights, starts, [sent for sent in clients.sent if sent])
        if len(self.weights.sent) > known:  # now there is room for it
            self._prefixes.clear()
        reset(self.weights)
        self.loss_sum.zero_()
        self.number.zero_()
        self._fill(self.rates[:, 0], clients.rates)
        self._fill(self._numbers, clients.first, clients.steps, clients.probes)
        if self.rule.probes:
            self._fill(self.sizes, clients.samples)
        if self.rule.keeps_start:
            cast(Tensor, self.weights.learning_rate).copy_(self.rates)
            cast(Tensor, self.weights.local_steps)[:, 0].copy_(self.steps - self.probes)
        if any(lacks is not None for lacks in clients.absent):
            none = torch.zeros_like(self.absent[0])
            self.absent[:number].copy_(torch.stack([none if lacks is None else lacks for lacks in clients.absent]))
        else:
            self.absent.zero_()
        left = number
        for step in range(clients.steps[0]):
            while clients.steps[left - 1] <= step:
                left -= 1
            self._take_step(self._room(left), clients.lengths[min(step, len(clients.lengths) - 1)])
        return StackResult(self.weights.values[0][:number], self.loss_sum[:number], self._reports(number))

    def _reports(self, clients: int) -> dict[str, Tensor]:
        """What the first so many rows report beside their sub-models."""
        if self.rule.local.reports is None:
            return {}
        found = report_of(self.weights.map(lambda rows: rows[:clients]), self.rule, self.capacity)
        return {name: rows[0] for name, rows in found.items()}

    def _fill(self, tensor: Tensor, *values: Sequence[Any]) -> None:
        """Copy values of the clients to the device, one or several of each; rows without a client get 0."""
        padded = [[*own, *[0] * (self.rows - len(own))] for own in values]
        tensor.copy_(copy_to_device(torch.tensor(padded, dtype=tensor.dtype), self.device).view_as(tensor))

    def _room(self, clients: int) -> int:
        """The number of rows that take a step where so many clients do; on a GPU that of the next captured prefix."""
        if self.device.type != "cuda":
            return clients
        unit = -(-self.rows // MAX_PREFIXES)
        return min(self.rows, -(-clients // unit) * unit)

    def _take_step(self, rows: int, longest: int) -> None:
        """Let the first rows take a step on batches of at most `longest` samples, on a GPU a captured one."""
        if rows not in self._prefixes:
            self._prefixes[rows] = Prefix.of(self, rows)
        prefix = self._prefixes[rows]
        if self.device.type != "cuda":
            self._step(prefix, longest)
            return
        if (rows, longest) not in self.graphs:
            self.graphs[rows, longest] = self._capture(prefix, longest)
        self.graphs[rows, longest].replay()

    def _capture(self, prefix: Prefix, longest: int) -> torch.cuda.CUDAGraph:
        """Capture a prefix's step. The one before really trains, so all it changes is put back afterwards."""
        held = [*changed_by_steps(prefix.weights), prefix.loss_sum, self.number]
        before = [tensor.clone() for tensor in held]
        with warnings.catch_warnings():
            ignore_restriding()
            self._step(prefix, longest)
            self.number.copy_(before[-1])
            graph = capture_graph(lambda: self._step(prefix, longest), self._stream)
        for tensor, value in zip(held, before, strict=True):
            tensor.copy_(value)
        return graph

    def _step(self, prefix: Prefix, longest: int) -> None:
        """Let the rows of a prefix take one step."""
        # A client that is done goes over its last batch again, with a learning rate of 0: its weights stay.
        active = self.number < prefix.steps
        inputs, targets = self.samples.batch(
            prefix.first + torch.minimum(self.number, prefix.steps - 1).clamp(min=0), longest, self.given
        )
        if self.sub.channels_last:
            inputs = client_channels_last(inputs)
        mask = self.settings.mask
        absent = None if mask == "none" else prefix.absent
        known = (self.module, None, mask, self.rule.options, self.capacity, self.objective, self.module)
        found, losses = gradients_of(
            self.module,
            prefix.parameters,
            prefix.rest,
            inputs,
            targets,
            absent=absent,
            client=Pass(*known, smoothing=self.settings.smoothing),
            rule=self.rule,
            forward=stacked_autocast(self.device, self.precision),
        )
        weights = prefix.weights
        torch._foreach_copy_(prefix.gradients, cast(list[Tensor], found))  # `try_stack` has seen that none is missing
        if self.rule.probes:
            active = self._probe(prefix, active)
        torch.mul(prefix.rates, active[:, None], out=cast(Tensor, weights.rate))
        take_step(weights, self.rule, self.settings, self.capacity)
        prefix.loss_sum.add_(torch.where(active, losses.to(prefix.loss_sum.dtype), 0.0))
        self.number.add_(1)

    def _probe(self, prefix: Prefix, active: Tensor) -> Tensor:
        """Gather the gradients of rows that still probe, reset those whose training begins; returns which rows train.

        Gradients of a row whose training begins are those at its first weights: nothing has moved them yet.
        """
        probing, begins = self.number < prefix.probes, self.number == prefix.probes
        rows = prefix.first + torch.minimum(self.number, prefix.steps - 1).clamp(min=0)
        share = self.samples.lengths(rows) / prefix.sizes
        torch.mul(share[:, None], probing[:, None], out=cast(Tensor, prefix.weights.share))
        moments = [*prefix.weights.first, *prefix.weights.second, cast(Tensor, prefix.weights.steps)]
        for moment in moments:
            moment.mul_(~begins[:, None])
        return active & ~probing


@dataclass(frozen=True)
class Prefix:
    """The first rows of a stack, as views."""

    weights: Weights
    parameters: dict[str, Tensor]
    rest: dict[str, Tensor]
    """The buffers and frozen parameters."""
    gradients: list[Tensor]
    loss_sum: Tensor
    rates: Tensor
    absent: Tensor
    first: Tensor
    steps: Tensor
    probes: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, stack: Stack, rows: int) -> Prefix:
        """The first so many rows of a stack."""
        weights = stack.weights.map(lambda tensor: tensor[:rows])
        vector = weights.gradients[0]
        assert vector is not None
        tensors, gradients = stack.sub.views(weights.values[0]), stack.sub.views(vector)
        return cls(
            weights=weights,
            parameters={name: tensors[name] for name in stack.names},
            rest={name: tensor for name, tensor in tensors.items() if name not in {*stack.names, *stack.constants}},
            gradients=[gradients[name] for name in stack.names],
            loss_sum=stack.loss_sum[:rows],
            rates=stack.rates[:rows],
            absent=stack.absent[:rows],
            first=stack.first[:rows],
            steps=stack.steps[:rows],
            probes=stack.probes[:rows],
            sizes=stack.sizes[:rows],
        )
