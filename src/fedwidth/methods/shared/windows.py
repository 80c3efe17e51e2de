"""Options and arithmetic that the rolling methods share: FedRolex and the thesis' FedCover and FedStack."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from torch import Tensor

from fedwidth.core.selection import rolling
from fedwidth.methods.definition import Moment, choice

DIRECTION = choice("forward", "backward", help="which way the window moves")
"""The option of rolling methods; backward is what the published FedRolex code does: {(i - j) mod K, i < n}."""


def roll(size: int, kept: int, advance: Fraction | int, at: Moment, *, stagger: bool) -> Tensor:
    """The window of a client: moved on by `advance` units for every round, and if staggered for every client before.

    A fractional advance (a share of the layer or of the window) is rounded down after multiplying, so windows stay
    evenly spread.
    """
    moves = at.round + (at.client if stagger else 0)
    start = int(advance * moves)  # floor: both are at least 0
    return rolling(size, kept, start if at.options["direction"] == "forward" else -start)


def is_step(value: Any) -> bool:
    """Whether a value is a whole number of units from 1 on, or a share strictly between 0 and 1."""
    if isinstance(value, bool):
        return False
    return (isinstance(value, int) and value >= 1) or (isinstance(value, (float, Fraction)) and 0 < value < 1)


def step_units(step: int | float | Fraction, whole: int) -> Fraction | int:
    """How many units a step has: as given, or that share of the whole, which is a layer's units or a window's."""
    return step if isinstance(step, int) else Fraction(step).limit_denominator(1_000_000) * whole
