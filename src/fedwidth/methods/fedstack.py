"""FedStack: FedRolex with a step of one whole window, clients one step apart, so that windows stack on one another
(thesis section 2.2.2).

The thesis writes "a step of size 1"; a step of the whole layer would never move, so it is read as one window.
"""

from __future__ import annotations

from torch import Tensor

from fedwidth.methods.definition import ROUNDING, Method, Moment, per_group
from fedwidth.methods.shared.windows import DIRECTION, roll


def units(size: int, kept: int, at: Moment) -> Tensor:
    """A window that starts at (round + client) * n (thesis Eq. 2.2)."""
    return roll(size, kept, kept, at, stagger=True)


METHOD = Method(
    name="fedstack",
    title="FedStack",
    paper="Swope 2024",
    equation="thesis Eq. 2.2",
    choose=per_group(units),
    options={"rounding": ROUNDING, "direction": DIRECTION},
)
