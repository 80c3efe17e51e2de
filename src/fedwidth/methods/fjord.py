"""FjORD: ordered dropout. A client holds the first units up to its capacity, like HeteroFL, and at every local step
trains a width drawn uniformly from those at or below its capacity, so that every prefix is a good model by itself.

Horvath et al. 2021, section 3: p ~ U over the set P of widths, restricted to p <= p_max of the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedwidth.methods.definition import Method, Moment, per_group
from fedwidth.methods.options import ROUNDING, Option, is_share, switch
from fedwidth.selection import prefix


def units(size: int, kept: int, at: Moment) -> Tensor:
    """The prefix the client holds; its local steps train prefixes of it."""
    del at
    return prefix(size, kept)


def local_widths(capacity: float, options: Mapping[str, Any]) -> list[float]:
    """The widths a client of this capacity draws from: those at or below it, and at least its own."""
    return [width for width in options["widths"] if width <= capacity] or [capacity]


def _widths(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(is_share(w) and w > 0 for w in value)


METHOD = Method(
    name="fjord",
    title="FjORD",
    paper="Horvath et al. 2021",
    equation="ordered dropout, section 3",
    choose=per_group(units),
    options={
        "rounding": ROUNDING,
        "widths": Option(
            (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0),
            "a list of widths above 0 and at most 1",
            _widths,
            "widths drawn from",
        ),
        "distil": switch("the full local width teaches the drawn one"),
    },
    shared=lambda _: True,
    local_widths=local_widths,
)
