"""A client's local step, written once: the method's term, clipping, the optimiser, and what is reported.

It works on lists of tensors: the parameters of a module, one flat vector [n], or the vectors of several clients as the
rows of one matrix [clients, n]. Engines supply forward pass and gradient, and decide where all this lies and runs: as
it is, or captured once and replayed. Numbers that differ between clients (the learning rate) are then tensors with a
fixed address: one number, or [clients, 1].

    loss        rule.loss, or cross entropy           `loss.loss_of`
    gradient    autograd, by the engine
    term        rule.gradient(g, w, start, sent)      `take_step`
    clipping    to the norm the settings allow        … with `optimiser.clip`
    optimiser   SGD, Adam or AdamW                    … with `optimiser.optimise`
    report      rule.reports(w, start, sent)          `report_of`
"""

from __future__ import annotations

from torch import Tensor

from fedwidth.errors import OptionError
from fedwidth.methods import LocalMoment
from fedwidth.methods.definition import FULL_GRADIENT
from fedwidth.settings import TrainingSettings
from fedwidth.training.optimiser import clip, optimise
from fedwidth.training.rule import Rule
from fedwidth.training.weights import Weights


def take_step(weights: Weights, rule: Rule, settings: TrainingSettings, capacity: float) -> None:
    """Move the weights by one step, in place, given their gradients (which are changed too)."""
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
    optimise(weights, used, settings)


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
    """What the client was sent for one of its tensors, by name."""
    return {name: tensors[number if len(tensors) > 1 else 0] for name, tensors in weights.sent.items()}
