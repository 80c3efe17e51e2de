"""What the flat engines, `cuda` (slots) and `vectorised` (stacks), cannot train, and why."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedwidth.engines.slots.trial import try_capture
from fedwidth.engines.stacks.trial import try_stack
from fedwidth.models import StaticBatchNorm2d
from fedwidth.training.client import Trainer

TRIALS: dict[str, Callable[[Trainer], str | None]] = {"cuda": try_capture, "vectorised": try_stack}
"""A trial of each flat engine on the trainer's device: it returns the reason why the engine cannot train, or None."""


def why_not_train(trainer: Trainer, engine: str) -> str | None:
    """The reason why a flat engine cannot train what the trainer holds, or None where it can."""
    return why_not_by_rule(trainer, engine) or TRIALS[engine](trainer)


def why_not_by_rule(trainer: Trainer, engine: str) -> str | None:
    """The reason why a flat engine cannot train what the trainer holds, as far as that is known without a trial.

    Slots train a module as it is, one client each. Stacks call it as a function of its tensors, so it must neither
    draw at random nor keep anything.
    """
    if trainer.data.is_lazy and engine == "vectorised":
        return "its samples are read as they are needed, and stacked clients take theirs from all of them in memory"
    if trainer.rule.local.rows and engine == "vectorised" and _has_sample_twice(trainer.partition.train.samples):
        return f"clients of {trainer.rule.title} are given something for each sample, and some have the same sample"
    if trainer.rule.local.loss is not None and not trainer.rule.local.steady:
        return f"the loss of {trainer.rule.title} may do something else at every step"
    if trainer.rule.local.rests is not None and trainer.plan.adapters:
        return f"clients of {trainer.rule.title} let one factor rest, which may be another one in every round"
    if trainer.rule.sends_or_reports and trainer.plan.adapters:
        return f"what clients of {trainer.rule.title} send beside units of adapters is cut one by one"
    if trainer.rule.local.widths is not None and engine == "vectorised":
        return f"clients of {trainer.rule.title} draw a width at every step, which stacked clients would share"
    networks = [trainer.model, *(one.model for one in dict.fromkeys(trainer.method.architectures.values()))]
    return next((reason for reason in (_why_not_model(each, trainer, engine) for each in networks) if reason), None)


def _has_sample_twice(samples: Tensor) -> bool:
    return bool((torch.bincount(samples) > 1).any())


def _why_not_model(model: nn.Module, trainer: Trainer, engine: str) -> str | None:
    """The same for one network."""
    if len({p.dtype for p in model.parameters()}) > 1:
        return "its parameters have several dtypes"
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase) and trainer.device.type == "cuda":
            return f"'{name}' needs its weights in cuDNN's own order, not in one vector with the others"
        if engine == "cuda":
            continue
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return f"'{name}' draws at random in every step, which stacked clients would do together"
        if drops_attention(module):
            return f"'{name}' drops attention at random in every step, which stacked clients would do together"
        tracks = isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
        if tracks and not isinstance(module, StaticBatchNorm2d):
            return f"'{name}' tracks running statistics while it trains"
    return None


def drops_attention(module: nn.Module) -> bool:
    """Whether a layer drops attention weights, which `nn.MultiheadAttention` does without a layer of its own."""
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0
