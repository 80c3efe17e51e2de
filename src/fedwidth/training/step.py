"""A client's local step, written once: the method's term, clipping, the optimiser, and what is reported.

It works on lists of tensors: the parameters of a module, one flat vector [n], or the vectors of several clients as the
rows of one matrix [clients, n]. Engines supply forward pass and gradient, and decide where all this lies and runs: as
it is, or captured once and replayed. Numbers that differ between clients (the learning rate) are then tensors with a
fixed address: one number, or [clients, 1].

    loss        rule.loss, or cross entropy           `loss_of`
    gradient    autograd, by the engine
    term        rule.gradient(g, w, start, sent)      `take_step`
    clipping    to the norm the settings allow        …
    optimiser   SGD, Adam or AdamW                    …
    report      rule.reports(w, start, sent)          `report_of`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedwidth.errors import OptionError
from fedwidth.methods import ClientPass, Local, LocalMoment, Method
from fedwidth.methods.local import FULL_GRADIENT
from fedwidth.settings import TrainingSettings

Number = float | Tensor
"""A number, or a tensor of numbers that differ between clients."""

IGNORED = -100
"""The target of what does not count, as PyTorch's cross entropy has it."""


@dataclass(frozen=True)
class Rule:
    """How the clients of a run train: the method's local rule with its options."""

    local: Local
    options: Mapping[str, Any]
    title: str

    @classmethod
    def of(cls, method: Method) -> Rule:
        """The rule of a method; where it has none, plain training."""
        return cls(method.local or Local(), method.values, method.title)

    @property
    def keeps_start(self) -> bool:
        """Whether what a client began with is needed after its first step."""
        return self.local.gradient is not None or self.local.reports is not None

    @property
    def sends_or_reports(self) -> bool:
        """Whether more travels than sub-models."""
        return self.local.sends is not None or self.local.reports is not None

    @property
    def probes(self) -> bool:
        """Whether the gradient at the start is taken over all data, before training."""
        return self.local.full_gradient(self.options)

    def equals(self, other: Rule) -> bool:
        """Whether clients of two runs train alike."""
        return self.local == other.local and (self.local == Local() or dict(self.options) == dict(other.options))


PLAIN = Rule(Local(), {}, "plain training")


@dataclass
class Weights:
    """What a step moves and what it needs for that, tensor by tensor; all keep their addresses."""

    values: list[Tensor]
    gradients: Sequence[Tensor | None]
    """None for parameters the loss does not depend on: they stay as they are."""
    first: list[Tensor] = field(default_factory=list)
    second: list[Tensor] = field(default_factory=list)
    """The moments of momentum and Adam."""
    scratch: list[Tensor] = field(default_factory=list)
    """Room for what is computed on the way: taking new memory in every step costs more than the arithmetic. Where
    there is none, memory is taken."""
    start: list[Tensor] = field(default_factory=list)
    """What the client began with, where the rule looks at it."""
    sent: dict[str, list[Tensor]] = field(default_factory=dict)
    """What it was sent beside that, tensor by tensor; numbers stand in a list of one."""
    gathered: list[Tensor] = field(default_factory=list)
    """The gradient over all data so far, where the rule asks for it."""
    steps: Number = 0.0
    """Steps taken so far."""
    rate: Number = 0.0
    """The length of this step: the learning rate, or 0 while the gradient over all data is gathered."""
    learning_rate: Number = 0.0
    """The client's learning rate, whatever this step does with it."""
    local_steps: Number = 1.0
    """Steps the client takes in the round."""
    share: Number = 0.0
    """What the batch counts in that: its share of the client's samples, and 0 while training."""
    rows: bool = False
    """Whether each row is a client of its own."""
    trainable: Tensor | None = None
    """In a vector: 0 for buffers and for parameters the loss does not depend on, which weight decay must not move. None
    where there are none."""
    elements: Tensor | None = None
    """In a vector, where a rule needs it: 1 for the elements of trained parameters, 0 for buffers and for the gaps
    between tensors."""

    def moments(self, settings: TrainingSettings) -> None:
        """Make room for the moments the optimiser needs."""
        if settings.optimiser != "sgd" or settings.momentum:
            self.first = [torch.zeros_like(value) for value in self.values]
        if settings.optimiser != "sgd":
            self.second = [torch.zeros_like(value) for value in self.values]

    def map(self, change: Callable[[Tensor], Tensor]) -> Weights:
        """The same with every tensor that has clients as its rows changed; masks have not."""

        def each(value: Any) -> Any:
            if isinstance(value, Tensor):
                return change(value)
            if isinstance(value, dict):
                return {name: [change(tensor) for tensor in tensors] for name, tensors in value.items()}
            return [change(tensor) for tensor in value] if isinstance(value, list) else value

        shared = ("trainable", "elements")
        return replace(self, **{f.name: each(getattr(self, f.name)) for f in fields(self) if f.name not in shared})


@dataclass
class Pass:
    """A client's pass through its model; engines that train one client at a time also know narrower sub-models."""

    forward: Callable[[Tensor], Tensor]
    absent: Tensor | None
    """True for the classes the client lacks, where their logits are masked."""
    mask: str
    options: Mapping[str, Any]
    capacity: float

    def logits(self, inputs: Tensor) -> Tensor:
        """The model's answer."""
        return self.forward(inputs)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy, with logits of absent classes masked as the settings say."""
        return masked_loss(logits, targets, self.absent, self.mask)

    def mean(self, values: Tensor, targets: Tensor) -> Tensor:
        """The mean of one value for each target, over the targets that count."""
        counted = (targets != IGNORED).to(values.dtype)
        return (values * counted).sum() / counted.sum()

    def narrower(self, width: float, inputs: Tensor) -> Tensor:
        """Only clients that train one at a time have narrower sub-models."""
        raise NotImplementedError("a rule whose loss asks for narrower sub-models must not be called steady")

    def generator(self, purpose: str) -> np.random.Generator:
        """Only clients that train one at a time draw."""
        raise NotImplementedError("a rule whose loss draws must not be called steady")


def loss_of(rule: Rule, client: ClientPass, inputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of a batch."""
    if rule.local.loss is not None:
        return rule.local.loss(client, inputs, targets)
    return client.loss(client.logits(inputs), targets)


def masked_loss(logits: Tensor, targets: Tensor, absent: Tensor | None, mask: str) -> Tensor:
    """Cross entropy over the last axis, ignoring targets of -100 (ended text)."""
    logits = mask_logits(logits, absent, mask)
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def mask_logits(logits: Tensor, absent: Tensor | None, mask: str) -> Tensor:
    """Logits of absent classes set to 0 (as HeteroFL and FedRolex publish it) or to -inf; classes are the last axis."""
    if absent is None:
        return logits
    return logits.masked_fill(absent, 0.0 if mask == "zero" else -math.inf)


def take_step(weights: Weights, rule: Rule, settings: TrainingSettings, capacity: float) -> None:
    """One step in place, from the gradients that are there."""
    used = [number for number, gradient in enumerate(weights.gradients) if gradient is not None]
    gradients = [gradient for gradient in weights.gradients if gradient is not None]
    if weights.gathered:
        for number, gradient in zip(used, gradients, strict=True):
            weights.gathered[number].add_(gradient * weights.share)
    if rule.local.gradient is not None:
        at = _moment(weights, rule, capacity)
        for number, gradient in zip(used, gradients, strict=True):
            value, start = weights.values[number], weights.start[number]
            term = rule.local.gradient(gradient, value, start, _sent(weights, number), at)
            _check_shape(term, gradient, "gradient", rule)
            for mask in (weights.elements, weights.trainable):
                term = term if mask is None else term * mask
            gradient.copy_(term)
    if settings.clip:
        clip(gradients, settings.clip, rows=weights.rows)
    _optimise(weights, used, settings)


def clip(gradients: list[Tensor], largest: float, *, rows: bool = False) -> None:
    """As torch.nn.utils.clip_grad_norm_: scale by clip / (norm + 1e-6) where that is below 1; each of `rows` alone."""
    if rows:
        norm = torch.linalg.vector_norm(gradients[0], dim=-1, keepdim=True)
    elif len(gradients) == 1:
        norm = torch.linalg.vector_norm(gradients[0])
    else:
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    _apply("mul_", gradients, (largest / (norm + 1e-6)).clamp(max=1.0))


def _optimise(weights: Weights, used: list[int], settings: TrainingSettings) -> None:
    """SGD, Adam and AdamW with PyTorch's arithmetic."""

    def own(tensors: Sequence[Tensor | None]) -> list[Tensor]:
        return [tensor for tensor in (tensors[number] for number in used) if tensor is not None] if tensors else []

    values, changes, scratch = own(weights.values), own(weights.gradients), own(weights.scratch)
    rate, decay = weights.rate, settings.weight_decay
    if decay:
        held = values if weights.trainable is None else _times(values, weights.trainable, scratch)
        if settings.optimiser == "adamw" and not isinstance(rate, Tensor):
            _apply("mul_", values, 1 - rate * decay)
        elif settings.optimiser == "adamw":
            _apply("sub_", values, _times(held, rate * decay, scratch))
        else:
            _apply("add_", changes, held, alpha=decay)
    first, second = own(weights.first), own(weights.second)
    if settings.optimiser == "sgd":
        if settings.momentum:
            _apply("mul_", first, settings.momentum)
            _apply("add_", first, changes)
            changes = first
        if isinstance(rate, Tensor):
            _apply("addcmul_", values, changes, [rate] * len(values), value=-1.0)
        else:
            _apply("add_", values, changes, alpha=-rate)
        return
    values, changes, first, second = (list(map(_real, tensors)) for tensors in (values, changes, first, second))
    weights.steps = weights.steps.add_(1) if isinstance(weights.steps, Tensor) else weights.steps + 1
    _apply("lerp_", first, changes, 1 - 0.9)
    _apply("mul_", second, 0.999)
    _apply("addcmul_", second, changes, changes, value=1 - 0.999)
    size = _roots(second, scratch)
    if not isinstance(rate, Tensor):  # numbers: to the bit as PyTorch's own
        _apply("div_", size, _bias(weights.steps, 0.999) ** 0.5)
        _apply("add_", size, 1e-8)
        _apply("addcdiv_", values, first, size, value=-(rate / _bias(weights.steps, 0.9)))
        return
    _apply("mul_", size, _bias(weights.steps, 0.999) ** -0.5)
    _apply("add_", size, 1e-8)
    moves = _quotients(first, size)
    _apply("mul_", moves, rate / _bias(weights.steps, 0.9))
    _apply("sub_", values, moves)


def report_of(weights: Weights, rule: Rule, capacity: float) -> dict[str, list[Tensor]]:
    """What a trained client reports beside its sub-model, tensor by tensor: what the rule says it adds or keeps."""
    if rule.local.reports is None:
        return {}
    at = _moment(weights, rule, capacity)
    found: dict[str, list[Tensor]] = {}
    for number, (value, start) in enumerate(zip(weights.values, weights.start, strict=True)):
        sent = _sent(weights, number)
        if weights.gathered:
            sent[FULL_GRADIENT] = weights.gathered[number]
        reports = rule.local.reports(value, start, sent, at)
        for name in (*rule.local.adds, *rule.local.own):
            if name not in reports:
                raise OptionError(f"the rule of {rule.title} must report '{name}', but reports {sorted(reports)}")
            _check_shape(reports[name], value, f"report '{name}'", rule)
            own = reports[name] if weights.elements is None else reports[name] * weights.elements
            found.setdefault(name, []).append(own.clone() if own is reports[name] else own)
    return found


def _moment(weights: Weights, rule: Rule, capacity: float) -> LocalMoment:
    return LocalMoment(rule.options, capacity, weights.learning_rate, weights.local_steps)


def _check_shape(found: object, expected: Tensor, what: str, rule: Rule) -> None:
    if not isinstance(found, Tensor) or found.shape != expected.shape:
        shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise OptionError(f"the {what} of {rule.title} must have the shape {list(expected.shape)}, not {shape}")


def _sent(weights: Weights, number: int) -> dict[str, Tensor]:
    """What was sent for one tensor."""
    return {name: tensors[number if len(tensors) > 1 else 0] for name, tensors in weights.sent.items()}


def _real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of real numbers, whose moments are apart."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _bias(steps: Number, keep: float) -> Any:
    """1 - keep^steps: what a moment that began at 0 lacks."""
    return 1 - torch.exp(steps * math.log(keep)) if isinstance(steps, Tensor) else 1 - keep**steps


# One tensor is moved by the plain operator; many (the parameters of a module) by as few kernels as PyTorch needs.


def _apply(operator: str, tensors: list[Tensor], *others: Any, **numbers: float) -> None:
    """An operator in place."""
    if len(tensors) == 1:
        getattr(tensors[0], operator)(*(o[0] if isinstance(o, list) else o for o in others), **numbers)
    elif tensors:
        getattr(torch, f"_foreach_{operator}")(tensors, *others, **numbers)


def _times(tensors: list[Tensor], factor: Number, scratch: list[Tensor]) -> list[Tensor]:
    """The tensors times a number."""
    if len(tensors) == 1:
        return [torch.mul(tensors[0], factor, out=scratch[0] if scratch else None)]
    return list(torch._foreach_mul(tensors, factor)) if tensors else []


def _roots(tensors: list[Tensor], scratch: list[Tensor]) -> list[Tensor]:
    """Their square roots."""
    if len(tensors) == 1:
        return [torch.sqrt(tensors[0], out=scratch[0] if scratch else None)]
    return list(torch._foreach_sqrt(tensors)) if tensors else []


def _quotients(tensors: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    """The tensors divided by others, which are used up."""
    if len(tensors) == 1:
        return [torch.div(tensors[0], others[0], out=others[0])]
    return list(torch._foreach_div(tensors, others)) if tensors else []
