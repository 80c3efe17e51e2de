"""Which runs can train as one batch."""

from __future__ import annotations

from collections.abc import Sequence

from fedwidth.engines.choice import SMALL_STEP, Work
from fedwidth.engines.limits import why_not
from fedwidth.engines.slots.making import try_capture
from fedwidth.engines.stacks.trial import try_stack
from fedwidth.training.client import Trainer
from fedwidth.training.rounds import compares_updates

SHARED = ("optimiser", "momentum", "weight_decay", "clip", "mask", "scaler", "augment", "batch_size")
"""Training settings that a stack or a slot has one of."""


def in_slots(trainer: Trainer) -> bool:
    """Whether packed runs train in slots and not as stacks: as the settings say, or on a GPU where steps are large."""
    if trainer.settings.engine != "auto":
        return trainer.settings.engine == "cuda"
    return trainer.device.type == "cuda" and Work.of(trainer).step > SMALL_STEP["cuda"]


def why_not_pack(trainers: Sequence[Trainer]) -> str | None:
    """Why these runs cannot train as one batch, as stacks or in slots; None where they can.

    They must have one model, one data set and one way of training; seeds, methods, partitions, capacities and learning
    rates may differ.
    """
    first = trainers[0]
    stacked = not in_slots(first)
    for trainer in trainers:
        reason = why_not(trainer, stacked=stacked) or _differs(first, trainer)
        if compares_updates(trainer.settings.server):
            reason = reason or "server.clip and server.screen compare single updates, which a pack does not keep"
        if stacked and (trainer.rule.sends_or_reports or trainer.rule.probes):
            reason = reason or f"clients of {trainer.rule.title} are sent or report more than a sub-model"
        if reason:
            return reason
    return try_stack(first) if stacked else try_capture(first)


def _differs(first: Trainer, other: Trainer) -> str | None:
    """What keeps two runs from sharing stacks or slots."""
    for name in SHARED:
        if getattr(first.settings.training, name) != getattr(other.settings.training, name):
            return f"training.{name} differs"
    if first.objective != other.objective:
        return "they are trained for different objectives"
    if not first.rule.equals(other.rule):
        return "their clients train by different local rules"
    if first.plan.shapes != other.plan.shapes or str(first.model) != str(other.model):
        return "their models differ"
    if first.data is not other.data:
        return "they do not share one data set in memory"
    if (first.device, first.settings.precision) != (other.device, other.settings.precision):
        return "they are on different devices or differ in precision"
    if first.settings.engine != other.settings.engine:
        return "their engines differ"
    return None
