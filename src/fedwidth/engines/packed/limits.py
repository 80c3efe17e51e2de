"""Which runs can train as one batch."""

from __future__ import annotations

from collections.abc import Sequence

from fedwidth.engines.choice import choose_packed
from fedwidth.engines.limits import TRIALS, why_not_by_rule
from fedwidth.errors import OptionError
from fedwidth.plan.watching.likeness import holds_alike
from fedwidth.training.client import Trainer
from fedwidth.training.server.single_updates import why_single

SHARED = ("optimiser", "momentum", "weight_decay", "clip", "mask", "smoothing", "scaler", "augment", "batch_size")
"""Training settings that all clients of a stack or a slot must have in common."""

MODEL = ("name", "options", "width", "heads", "keep")
"""Settings of the model that say what it is; the others only say which weights it begins with."""


def check_pack(trainers: Sequence[Trainer]) -> None:
    """Refuse runs that cannot train as one batch."""
    if (reason := why_not_pack(trainers)) is not None:
        raise OptionError(f"these runs cannot train as one batch: {reason}")


def why_not_pack(trainers: Sequence[Trainer]) -> str | None:
    """The reason why these runs cannot train as one batch, or None where they can.

    They must have one model, one data set and one way of training; seeds, methods, partitions, capacities and learning
    rates may differ.
    """
    first = trainers[0]
    engine = choose_packed(first)
    for trainer in trainers:
        reason = why_not_by_rule(trainer, engine) or why_not_train_together(first, trainer)
        if (single := why_single(trainer.settings)) is not None:
            reason = reason or f"{single}, which a pack does not keep"
        if trainer.rule.local.answers is not None:
            reason = reason or f"models stay with the clients of {trainer.rule.title}, of which a pack knows nothing"
        if trainer.method.architectures:
            reason = reason or "a pack shares one model, and clients hold several architectures"
        if trainer.settings.server.norms != "shared":
            reason = (
                reason or "a pack cuts a run's sub-models out of one state, and server.norms has one for each capacity"
            )
        if trainer.plan.adapters:
            reason = reason or "adapters need single updates, which a pack does not keep"
        if engine == "vectorised" and not trainer.method.slices:
            reason = reason or f"a pack cuts its stacks with one gather, and {trainer.method.title} hands out no slices"
        if engine == "vectorised" and (trainer.rule.sends_or_reports or trainer.rule.probes):
            reason = reason or f"clients of {trainer.rule.title} are sent or report more than a sub-model"
        if reason:
            return reason
    return TRIALS[engine](first)


def why_not_train_together(first: Trainer, other: Trainer) -> str | None:
    """The difference that keeps clients of two runs from training in the same slots or stacks, or None.

    Their modules are made from one of the two runs' models, so that all but the weights must be the same in both.
    """
    for name in SHARED:
        if getattr(first.settings.training, name) != getattr(other.settings.training, name):
            return f"training.{name} differs"
    if first.objective != other.objective:
        return "they are trained for different objectives"
    if not first.rule.equals(other.rule):
        return "their clients train by different local rules"
    if first.plan.shapes != other.plan.shapes or str(first.model) != str(other.model):
        return "their models differ"
    if (first.plan.axes, first.plan.attributes) != (other.plan.axes, other.plan.attributes):
        return "their models are sliced differently"
    if first.trained != other.trained:
        return "they train different parameters of their models"
    for name in MODEL:
        if getattr(first.settings.model, name) != getattr(other.settings.model, name):
            return f"model.{name} differs"
    if not holds_alike(first.model, other.model):
        return "their models differ in what they hold beside weights"
    if first.data is not other.data:
        return "they do not share one data set in memory"
    if (first.device, first.settings.precision) != (other.device, other.settings.precision):
        return "they are on different devices or differ in precision"
    if first.takes_channels_last != other.takes_channels_last:
        return "their images are laid out differently"
    if first.settings.engine != other.settings.engine:
        return "their engines differ"
    return None
