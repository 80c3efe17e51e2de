"""Local training of one sub-model on one client's data, one client at a time.

A `Trainer` holds what all clients share (model, data, settings) and one skeleton module per size; `train` fills the
skeleton with a client's sub-model, trains it and returns the update. The step itself stands in `step`. All randomness
comes from (seed, round, client, purpose).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedwidth.core.aggregation import Update, weigh
from fedwidth.core.narrow import skeleton
from fedwidth.core.part import Part
from fedwidth.core.submodel import state_of, take
from fedwidth.core.updates import check_finite
from fedwidth.data import Data, Partition
from fedwidth.methods import Beginning, Method, Sending, Task
from fedwidth.models import set_scaler
from fedwidth.plan.isolation import untouched
from fedwidth.plan.plan import Plan
from fedwidth.plan.trace import tensors_of
from fedwidth.randomness import numpy_generator, torch_generator, torch_seed
from fedwidth.settings import Settings, TrainingSettings
from fedwidth.training.gpu import autocast
from fedwidth.training.step import Pass, Rule, Weights, loss_of, report_of, take_step

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """A client's update and what it reports beside it."""

    update: Update
    passes: int
    """Training samples seen, each as often as it was seen."""
    loss: float
    """Mean over the local steps."""
    kept: Mapping[str, State] = field(default_factory=dict)
    """What the client keeps for itself, by name and tensor: its part of its memory."""


@dataclass
class Trainer:
    """Trains sub-models of one model on the clients of one partition."""

    model: nn.Module
    plan: Plan
    data: Data
    partition: Partition
    method: Method
    settings: Settings
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _skeletons: dict[Hashable, nn.Module] = field(default_factory=dict, repr=False)

    def train(self, sub: State, task: Task, round: int, sent: Mapping[str, State | float] | None = None) -> Trained:
        """Train the client's sub-model; the returned tensors are the skeleton's own, valid until the next call.

        `sent` is what the client was sent beside it, cut like the sub-model; where it is left out, it is cut here.
        """
        settings, seed = self.settings.training, self.settings.seed
        module = self.skeleton(task.part)
        tensors = load(module, sub)
        if settings.scaler:
            set_scaler(module, task.capacity)
        rate, samples = learning_rate(settings, round, self.settings.rounds), self.partition[task.client]
        pass_ = _Pass.of(self, module, task, round)
        weights = self._weights(pass_, self.cut_sent(task) if sent is None else sent, rate)
        weights.local_steps = float(count_steps(len(samples), settings))
        augments = settings.augment and self.data.transform.augments
        draws = torch_generator(seed, "augment", round, task.client) if augments else None
        precise = torch.promote_types(torch.float32, next(module.parameters()).dtype)
        losses, steps, passes = torch.zeros((), dtype=precise, device=self.device), 0, 0

        def step(batch: Tensor) -> Tensor:
            found = self.data.batch(self.data.train, batch, train=augments, generator=draws, device=self.device)
            return self._step(pass_, weights, *found)

        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            _seed_device(self.device, dropout_seed(seed, round, task.client))
            if self.rule.probes:
                for batch in batches(samples, one_epoch(settings), order_generator(seed, round, task.client)):
                    weights.rate, weights.share = 0.0, len(batch) / len(samples)
                    step(batch)
                    passes += len(batch)
                load(module, sub)  # what layers counted on the way is forgotten, and so is the momentum
                weights.moments(settings)
                weights.rate, weights.share, weights.steps = rate, 0.0, 0.0
            for batch in batches(samples, settings, order_generator(seed, round, task.client)):
                losses += step(batch)
                steps += 1
                passes += len(batch)
        weight, rows = weigh_client(self, task, steps)
        reports = {
            name: dict(zip(pass_.names, found, strict=True))
            for name, found in report_of(weights, self.rule, task.capacity).items()
        }
        kept = {name: reports.pop(name) for name in self.rule.local.own if name in reports}
        for tensors_kept in kept.values():
            check_finite(tensors_kept, f"client {task.client}")
        update = Update(tensors, task.part, weight, labels=rows, client=task.client, reports=reports)
        return Trained(update, passes, float(losses) / steps, kept)

    def cut_sent(self, task: Task) -> dict[str, State | float]:
        """What the client is sent beside its sub-model, cut like it."""
        return {
            name: value
            if isinstance(value, (int, float))
            else {tensor: take(full, task.index, tensor) for tensor, full in value.items()}
            for name, value in task.sends.items()
        }

    def example_sends(self, state: State) -> Mapping[str, State | float]:
        """What the first client would be sent in the first round: names and kinds are those of every round."""
        if self.rule.local.sends is None:
            return {}
        memory = self.method.first_memory(Beginning(state, self.plan, options=self.method.values))
        at = Sending(0, 0, self.settings.seed, len(self.partition), self.method.values)
        return self.rule.local.sends(memory, {}, at)

    def _weights(self, pass_: _Pass, sent: Mapping[str, State | float], rate: float) -> Weights:
        """The sub-model in the skeleton, as the step takes it."""
        values = [parameter.detach() for parameter in pass_.parameters]
        weights = Weights(values, [None] * len(values), rate=rate, learning_rate=rate)
        weights.moments(self.settings.training)
        if self.rule.keeps_start:
            weights.start = [value.clone() for value in values]
        if self.rule.probes:
            weights.gathered = [torch.zeros_like(value) for value in values]
        for name, given in sent.items():
            if isinstance(given, (int, float)):
                weights.sent[name] = [values[0].new_tensor(float(given))]
            else:
                weights.sent[name] = [given[tensor].to(self.device) for tensor in pass_.names]
        return weights

    def _step(self, pass_: _Pass, weights: Weights, inputs: Tensor, targets: Tensor) -> Tensor:
        """One local step; its loss."""
        if self.channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        for parameter in pass_.parameters:
            parameter.grad = None
        with autocast(self.device, self.settings.precision):
            loss = loss_of(self.rule, pass_, inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        weights.gradients = [parameter.grad for parameter in pass_.parameters]
        with torch.no_grad():
            take_step(weights, self.rule, self.settings.training, pass_.capacity)
        return loss.detach()

    @cached_property
    def trained(self) -> frozenset[str]:
        """The names of the parameters that are trained, tied ones once."""
        return frozenset(name for name, parameter in self.model.named_parameters() if parameter.requires_grad)

    @cached_property
    def rule(self) -> Rule:
        """How clients train."""
        return Rule.of(self.method)

    def skeleton(self, part: Part) -> nn.Module:
        """The module of a part's size, in training mode; made once and refilled for every client."""
        if part.size not in self._skeletons:
            made = part.module(self.model, self.plan)
            # A model without values (on the meta device) is enough to cut from: tasks bring the values.
            made = made.to_empty(device=self.device) if is_meta(made) else made.to(self.device)
            if self.channels_last:
                made = made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._skeletons[part.size] = made
        return self._skeletons[part.size].train()

    @cached_property
    def channels_last(self) -> bool:
        """Whether images lie with their channels last in memory: on processors, convolution and pooling are faster."""
        return self.device.type == "cpu" and self.takes_channels_last

    @cached_property
    def takes_channels_last(self) -> bool:
        """Whether the model convolves, and computes with its channels last in memory; `x.view(n, -1)` cannot."""
        if not any(isinstance(module, nn.Conv2d) for module in self.model.modules()):
            return False
        if is_meta(self.model):  # a narrow one of zeros: on the meta device views of any layout seem to work
            whole = skeleton(self.model, self.plan, self.plan.counts(0.25, "ceil")).to_empty(device=self.device)
            values = {name: torch.zeros_like(tensor) for name, tensor in tensors_of(whole)[0].items()}
        else:
            whole, values = skeleton(self.model, self.plan, {}).to(self.device), state_of(self.model)
        with torch.no_grad(), untouched(whole):
            load(whole, values)
            inputs = self.data.example().to(self.device)
            try:
                whole = whole.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
                whole(inputs.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else inputs)
            except RuntimeError:
                return False
        return True


@dataclass
class _Pass(Pass):
    """A client's pass through the module in a skeleton."""

    trainer: Trainer
    module: nn.Module
    task: Task
    round: int
    names: list[str]
    parameters: list[nn.Parameter]
    """Those that are trained."""
    _generators: dict[str, np.random.Generator] = field(default_factory=dict)

    @classmethod
    def of(cls, trainer: Trainer, module: nn.Module, task: Task, round: int) -> _Pass:
        """The pass of a task's client."""
        mask, labels = trainer.settings.training.mask, trainer.partition.labels[task.client]
        absent = absent_classes(labels, trainer.data.classes, mask, trainer.device)
        trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        options, capacity = trainer.method.values, task.capacity
        found = list(trained), list(trained.values())
        return cls(module, absent, mask, options, capacity, trainer, module, task, round, *found)

    def generator(self, purpose: str) -> np.random.Generator:
        """Randomness of this client, round and purpose alone; it goes on from step to step."""
        if purpose not in self._generators:
            seed = self.trainer.settings.seed
            self._generators[purpose] = numpy_generator(seed, purpose, self.round, self.task.client)
        return self._generators[purpose]

    def narrower(self, width: float, inputs: Tensor) -> Tensor:
        """Forward through the sub-model of this width: its weights are slices of the client's."""
        trainer, outer = self.trainer, self.task.index
        inner = trainer.method.select(trainer.plan, capacity=width, round=self.round, seed=trainer.settings.seed)
        smaller = trainer.skeleton(inner)
        if trainer.settings.training.scaler:
            set_scaler(smaller, width)
        tensors = {}
        for name, tensor in [*self.module.named_parameters(), *self.module.named_buffers()]:
            for dim, (kept, held) in enumerate(zip(inner[name], outer[name], strict=True)):
                if len(kept) != len(held):
                    tensor = tensor.index_select(dim, torch.searchsorted(held, kept).to(tensor.device))
            tensors[name] = tensor
        logits: Tensor = functional_call(smaller, tensors, (inputs,))
        if smaller is self.module and trainer.settings.training.scaler:  # layers too small for the widths to differ
            set_scaler(self.module, self.task.capacity)
        return logits


def weigh_client(trainer: Trainer, task: Task, steps: int) -> tuple[float, Tensor | None]:
    """What a client's update weighs, and the classes whose rows it counts for; None: all of them."""
    server, client = trainer.settings.server, task.client
    samples = trainer.partition.size(client)
    weight = weigh(server.weighting, samples=samples, index=task.part, updates=steps)
    return weight, trainer.partition.labels[client] if server.label_rows else None


def one_epoch(settings: TrainingSettings) -> TrainingSettings:
    """The settings of a single pass over a client's data."""
    return replace(settings, epochs=1, steps=0)


def order_generator(seed: int, round: int, client: int) -> torch.Generator:
    """What shuffles a client's samples in a round."""
    return torch_generator(seed, "order", round, client)


def is_meta(module: nn.Module) -> bool:
    """Whether the module has shapes only, no values."""
    return any(tensor.is_meta for tensor in module.parameters())


def dropout_seed(seed: int, round: int, client: int) -> int:
    """The seed of what a client's layers draw in a round."""
    return torch_seed(seed, "dropout", round, client)


def _seed_device(device: torch.device, seed: int) -> None:
    """Seed what dropout draws from, there alone: `torch.manual_seed` also visits devices that are not in use."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def load(module: nn.Module, sub: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy a sub-model into a skeleton; returns the skeleton's own tensors by name, detached."""
    found = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    tensors = {name: tensor.detach() for name, tensor in found if name in sub}
    for name, tensor in tensors.items():
        tensor.copy_(sub[name])
    return tensors


def batches(samples: Tensor, settings: TrainingSettings, generator: torch.Generator) -> Iterator[Tensor]:
    """Sample numbers of each local step: shuffled anew each epoch, the last batch of an epoch may be short."""
    per_epoch = math.ceil(len(samples) / settings.batch_size)
    for step in range(count_steps(len(samples), settings)):
        place = step % per_epoch
        if place == 0:
            shuffled = samples[torch.randperm(len(samples), generator=generator)]
        yield shuffled[place * settings.batch_size : (place + 1) * settings.batch_size]


def count_steps(samples: int, settings: TrainingSettings) -> int:
    """Local steps of a client with so many samples."""
    return settings.steps or settings.epochs * math.ceil(samples / settings.batch_size)


def count_passes(samples: int, settings: TrainingSettings) -> int:
    """Training samples that a client with so many sees in a round, each as often as it is seen.

    >>> count_passes(25, TrainingSettings(batch_size=10, epochs=2)), count_passes(25, TrainingSettings(steps=4))
    (50, 35)
    """
    epochs, steps = divmod(count_steps(samples, settings), math.ceil(samples / settings.batch_size))
    return epochs * samples + steps * settings.batch_size


def learning_rate(settings: TrainingSettings, round: int, rounds: int) -> float:
    """The learning rate of a round (all clients of a round use one).

    >>> steps = TrainingSettings(lr=1.0, schedule="multistep", milestones=[10, 20], decay=0.1)
    >>> [round_ for round_ in (0, 9, 10, 20) if learning_rate(steps, round_, 30) == 1.0]
    [0, 9]
    """
    match settings.schedule:
        case "multistep":
            return float(settings.lr * settings.decay ** sum(round >= m for m in settings.milestones))
        case "exponential":
            return float(settings.lr * settings.decay**round)
        case "cosine":
            return float(settings.lr * (1 + math.cos(math.pi * round / rounds)) / 2)
        case _:
            return settings.lr


def absent_classes(labels: Tensor, classes: int, mask: str, device: torch.device) -> Tensor | None:
    """True for classes the client has no sample of; None where nothing is masked."""
    if mask == "none" or len(labels) == classes:
        return None
    absent = torch.ones(classes, dtype=torch.bool, device=device)
    absent[labels.to(device)] = False
    return absent
