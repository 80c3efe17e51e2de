"""Local training of one sub-model on one client's data.

A `Trainer` holds what all clients share (model, data, settings) and one skeleton module per size; `train` fills the
skeleton with a client's sub-model, trains it and returns the update. All randomness comes from (seed, round, client).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedwidth.aggregation import Update, weigh
from fedwidth.data import IGNORE, Data, Partition
from fedwidth.device import autocast
from fedwidth.methods import Method, Task
from fedwidth.models import set_scaler
from fedwidth.narrow import skeleton
from fedwidth.plan.guard import untouched
from fedwidth.plan.plan import Plan
from fedwidth.plan.trace import tensors_of
from fedwidth.randomness import numpy_generator, torch_generator, torch_seed
from fedwidth.settings import Settings, TrainingSettings
from fedwidth.submodel import state_of


@dataclass(frozen=True)
class Trained:
    """A client's update and what it reports beside it."""

    update: Update
    passes: int
    """Training samples seen, each as often as it was seen."""
    loss: float
    """Mean over the local steps."""


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
    _skeletons: dict[tuple[tuple[str, int], ...], nn.Module] = field(default_factory=dict, repr=False)

    def train(self, sub: Mapping[str, Tensor], task: Task, round: int) -> Trained:
        """Train the client's sub-model; the returned tensors are the skeleton's own, valid until the next call."""
        settings, seed = self.settings.training, self.settings.seed
        module = self.skeleton(task.index.counts)
        tensors = load(module, sub)
        if settings.scaler:
            set_scaler(module, task.capacity)
        samples = self.partition[task.client]
        labels = self.partition.labels[task.client]
        absent = absent_classes(labels, self.data.classes, settings.mask, self.device)
        optimiser = make_optimiser(module, settings, learning_rate(settings, round, self.settings.rounds))
        order = torch_generator(seed, "order", round, task.client)
        augments = settings.augment and self.data.transform.augments
        draws = torch_generator(seed, "augment", round, task.client) if augments else None
        widths = _Widths(self, task, round)
        precise = torch.promote_types(torch.float32, next(module.parameters()).dtype)
        losses, steps, passes = torch.zeros((), dtype=precise, device=self.device), 0, 0
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            _seed_device(self.device, dropout_seed(seed, round, task.client))
            for batch in batches(samples, settings, order):
                inputs, targets = self.data.batch(
                    self.data.train, batch, train=augments, generator=draws, device=self.device
                )
                if self.channels_last and inputs.dim() == 4:
                    inputs = inputs.contiguous(memory_format=torch.channels_last)
                optimiser.zero_grad(set_to_none=True)
                with autocast(self.device, self.settings.precision):
                    loss = widths.loss(module, inputs, targets, absent)
                loss.backward()  # type: ignore[no-untyped-call]
                if settings.clip:
                    nn.utils.clip_grad_norm_(module.parameters(), settings.clip)
                optimiser.step()
                losses += loss.detach()
                steps += 1
                passes += len(batch)
        weight = weigh(self.settings.server.weighting, samples=len(samples), index=task.index, updates=steps)
        rows = labels if self.settings.server.label_rows else None
        update = Update(tensors, task.index, weight, labels=rows, client=task.client)
        return Trained(update, passes, float(losses) / steps)

    def skeleton(self, counts: Mapping[str, int]) -> nn.Module:
        """The module of this size, in training mode; made once and refilled for every client."""
        size = tuple(counts.items())
        if size not in self._skeletons:
            made = skeleton(self.model, self.plan, counts)
            # A model without values (on the meta device) is enough to cut from: tasks bring the values.
            made = made.to_empty(device=self.device) if is_meta(made) else made.to(self.device)
            if self.channels_last:
                made = made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._skeletons[size] = made
        return self._skeletons[size].train()

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
class _Widths:
    """The loss of a local step: of the client's own width, or (FjORD) of a width drawn at or below it."""

    trainer: Trainer
    task: Task
    round: int

    def __post_init__(self) -> None:
        method = self.trainer.method
        self.choices = method.local_widths(self.task.capacity, method.values) if method.local_widths else []
        self.distil = bool(method.values.get("distil", False))

    @cached_property
    def draws(self) -> np.random.Generator:
        return numpy_generator(self.trainer.settings.seed, "width", self.round, self.task.client)

    def loss(self, module: nn.Module, inputs: Tensor, targets: Tensor, absent: Tensor | None) -> Tensor:
        mask = self.trainer.settings.training.mask
        width = float(self.draws.choice(self.choices)) if self.choices else self.task.capacity
        if width >= self.task.capacity:
            return masked_loss(module(inputs), targets, absent, mask)
        logits = self._narrower(module, width, inputs)
        loss = masked_loss(logits, targets, absent, mask)
        if not self.distil:
            return loss
        # FjORD 3.3: the client's full width learns from the labels and teaches the drawn width.
        teacher = module(inputs)
        lessons = functional.kl_div(logits.log_softmax(-1), teacher.detach().softmax(-1), reduction="none").sum(-1)
        lesson = lessons[targets != IGNORE].mean()
        return masked_loss(teacher, targets, absent, mask) + 0.5 * loss + 0.5 * lesson

    def _narrower(self, module: nn.Module, width: float, inputs: Tensor) -> Tensor:
        """Forward through the prefix of this width: its weights are slices of the client's, so gradients reach them."""
        trainer, outer = self.trainer, self.task.index
        inner = trainer.method.select(trainer.plan, capacity=width, round=self.round)
        smaller = trainer.skeleton(inner.counts)
        if trainer.settings.training.scaler:
            set_scaler(smaller, width)
        tensors = {}
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            for dim, (kept, held) in enumerate(zip(inner[name], outer[name], strict=True)):
                if len(kept) != len(held):
                    tensor = tensor.index_select(dim, torch.searchsorted(held, kept).to(tensor.device))
            tensors[name] = tensor
        logits: Tensor = functional_call(smaller, tensors, (inputs,))
        if smaller is module and trainer.settings.training.scaler:  # layers too small for the widths to differ
            set_scaler(module, self.task.capacity)
        return logits


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
    steps = settings.steps or settings.epochs * per_epoch
    for step in range(steps):
        place = step % per_epoch
        if place == 0:
            shuffled = samples[torch.randperm(len(samples), generator=generator)]
        yield shuffled[place * settings.batch_size : (place + 1) * settings.batch_size]


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


def make_optimiser(module: nn.Module, settings: TrainingSettings, lr: float) -> torch.optim.Optimizer:
    """A fresh optimiser, as every client gets in every round."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    match settings.optimiser:
        case "adam":
            return torch.optim.Adam(parameters, lr=lr, weight_decay=settings.weight_decay)
        case "adamw":
            return torch.optim.AdamW(parameters, lr=lr, weight_decay=settings.weight_decay)
        case _:
            return torch.optim.SGD(parameters, lr=lr, momentum=settings.momentum, weight_decay=settings.weight_decay)


def absent_classes(labels: Tensor, classes: int, mask: str, device: torch.device) -> Tensor | None:
    """True for classes the client has no sample of; None where nothing is masked."""
    if mask == "none" or len(labels) == classes:
        return None
    absent = torch.ones(classes, dtype=torch.bool, device=device)
    absent[labels.to(device)] = False
    return absent


def mask_logits(logits: Tensor, absent: Tensor | None, mask: str) -> Tensor:
    """Logits of absent classes set to 0 (as HeteroFL and FedRolex publish it) or to -inf; classes are the last axis."""
    if absent is None:
        return logits
    return logits.masked_fill(absent, 0.0 if mask == "zero" else -math.inf)


def masked_loss(logits: Tensor, targets: Tensor, absent: Tensor | None, mask: str) -> Tensor:
    """Cross entropy over the last axis, ignoring targets of -100 (ended text)."""
    logits = mask_logits(logits, absent, mask)
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
