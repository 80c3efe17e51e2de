"""What a device of some capacity really has: shares of the full model, and why they are larger than was asked."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from fedwidth.plan.axis import KEPT, Axis, Fixed, Units, groups_of, kept, leaves

if TYPE_CHECKING:
    from fedwidth.plan.plan import Plan

FAR = 1.2
"""A share this many times the capacity is far from what was asked: a layer's parameters shrink with the capacity where
one of its sides does, and with its square where both do."""
MOSTLY = 0.5
"""A model of which a small device holds more than this share of the parameters stays mostly whole."""
ALWAYS = ("model input", "model output", "vocabulary", "kernel size", "spatial size")
"""Reasons for which a dimension stays whole in any model."""
SHOWN = 3
"""How many reasons are named, and modules for each."""


@dataclass(frozen=True)
class Share:
    """What of the full model the sub-model of a capacity has."""

    capacity: float | Fraction
    counts: Mapping[str, int] | None
    """How many units of each group it keeps; None for a sub-model that is no slice."""
    parameters: float
    macs: float
    """Of the multiply-adds of a forward pass."""
    memory: float
    """Of the memory to train."""

    @property
    def is_far(self) -> bool:
        """Whether many more parameters stay than was asked."""
        return self.parameters > FAR * self.capacity


def share(
    plan: Plan, capacity: float | Fraction, *, rounding: str = "floor", batch: int = 32, moments: int = 1
) -> Share:
    """The share of parameters, multiply-adds and memory that a device of this capacity has.

    Memory is that of training with batches of this size and so many moments of the optimiser (SGD 0 or 1, Adam 2).
    """
    counts, work = plan.counts(capacity, rounding), plan.work
    return Share(
        capacity,
        counts,
        parameters=ratio(count_elements(plan, counts), count_elements(plan, {})),
        macs=ratio(work.macs(counts), work.macs({})),
        memory=ratio(*(work.memory(c, batch=batch, moments=moments) for c in (counts, {}))),
    )


def ratio(part: float, whole: float) -> float:
    """The part as a share of the whole; all of it where there is nothing."""
    return part / whole if whole else 1.0


def count_elements(plan: Plan, counts: Mapping[str, int]) -> int:
    """Elements of the narrow parameters, tied ones once."""
    shapes = plan.narrow_shapes(counts)
    return sum(math.prod(shapes[name]) for name in plan.parameters if name not in plan.tied)


def why_so_large(plan: Plan, found: Share) -> list[str]:
    """The modules that stay larger than was asked, the largest first, each line with the reason."""
    counts, capacity, total = found.counts, found.capacity, count_elements(plan, {})
    if counts is None:
        return []
    if all(counts.get(name, group.size) == group.size for name, group in plan.groups.items()):
        return ["the method gives every device the whole model"]
    excess: dict[str, int] = {}
    modules: dict[str, dict[str, None]] = {}
    for name, axes in plan.axes.items():
        if name not in plan.parameters or name in plan.tied:
            continue
        full, narrow = (math.prod(kept(axis, c) for axis in axes) for c in ({}, counts))
        if narrow <= FAR * capacity * full:
            continue
        reason = _reason(axes, counts, capacity)
        excess[reason] = excess.get(reason, 0) + narrow
        modules.setdefault(reason, {})[name.rpartition(".")[0] or name] = None
    largest = sorted(excess, key=lambda reason: -excess[reason])[:SHOWN]
    return [f"{_some(list(modules[reason]))} ({excess[reason] / total:.0%}): {reason}" for reason in largest]


def warn_if_mostly_whole(plan: Plan, capacities: Iterable[float | Fraction], rounding: str = "floor") -> None:
    """Warn where the smallest device holds most of the model though it asked for little of it, and say why."""
    least = share(plan, min(capacities), rounding=rounding)
    why = why_so_large(plan, least)
    if least.parameters > max(MOSTLY, 2 * least.capacity) and not why[0].endswith(KEPT):
        held = f"at {least.capacity} a device holds {least.parameters:.0%} of the parameters"
        warnings.warn(f"{held}: {'; '.join(why)}", stacklevel=2)


def _reason(axes: tuple[Axis, ...], counts: Mapping[str, int], capacity: float | Fraction) -> str:
    """Why the largest dimension that hardly shrinks does not."""
    whole = [axis for axis in axes if axis.size > 1 and kept(axis, counts) > FAR * capacity * axis.size]
    for axis in sorted(whole, key=lambda axis: (_rank(axis), -axis.size)):
        for leaf in leaves(axis):
            if isinstance(leaf, Fixed) and leaf.size > 1 and not groups_of(axis):
                return leaf.reason
            if isinstance(leaf, Units) and counts[leaf.group] > FAR * capacity * leaf.size:
                return f"group '{leaf.group}' keeps {counts[leaf.group]} of {leaf.size} units"
    return "of its dimensions only some shrink"


def _rank(axis: Axis) -> int:
    """How well a dimension explains a tensor that hardly shrinks: one that is whole in any model comes last."""
    if groups_of(axis):
        return 1
    return 2 if isinstance(axis, Fixed) and axis.reason in ALWAYS else 0


def _some(names: list[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
