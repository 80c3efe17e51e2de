"""FedCover: FedRolex with steps of 1/number of clients, clients one step apart, so that the windows of a round spread
evenly over the layer (thesis section 2.2.2).
"""

from __future__ import annotations

from fractions import Fraction

from torch import Tensor

from fedwidth.methods.definition import ROUNDING, Method, Moment, per_group
from fedwidth.methods.shared.windows import DIRECTION, roll


def units(size: int, kept: int, at: Moment) -> Tensor:
    """A window that starts at (round + client) * K / clients (thesis Eq. 2.2)."""
    return roll(size, kept, Fraction(size, at.clients), at, stagger=True)


METHOD = Method(
    name="fedcover",
    title="FedCover",
    paper="Swope 2024",
    equation="thesis Eq. 2.2",
    choose=per_group(units),
    options={"rounding": ROUNDING, "direction": DIRECTION},
)
