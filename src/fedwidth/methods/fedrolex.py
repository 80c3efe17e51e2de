"""FedRolex: a window over the units that moves on every round and wraps around, so all units are trained evenly
(Eq. 4). All clients of a round share the offset: smaller windows are prefixes of larger ones.
"""

from __future__ import annotations

import math

from torch import Tensor

from fedwidth.methods.definition import ROUNDING, Method, Moment, Option, choice, is_share, per_group, switch
from fedwidth.methods.shared.windows import DIRECTION, is_step, roll, step_units


def units(size: int, kept: int, at: Moment) -> Tensor:
    """The window {j, …, j + n - 1} mod K with j = round * step (Eq. 4).

    With `overlap` r the step is 1 + floor(beta (1-r) K) (appendix A.4).
    """
    overlap = at.options["overlap"]
    if overlap is None:
        advance = step_units(at.options["step"], kept if at.options["step_of"] == "window" else size)
    else:
        advance = 1 + math.floor(float(at.capacity) * (1 - overlap) * size + 1e-9)
    return roll(size, kept, advance, at, stagger=at.options["stagger"])


METHOD = Method(
    name="fedrolex",
    title="FedRolex",
    paper="Alam et al. 2022",
    equation="Eq. 4",
    choose=per_group(units),
    options={
        "rounding": ROUNDING,
        "step": Option(
            1,
            "a whole number of units from 1 on or a share between 0 and 1",
            is_step,
            "advance a round",
        ),
        "step_of": choice("layer", "window", help="what a step between 0 and 1 is a share of"),
        "overlap": Option(
            None,
            "a number from 0 to 1, or unset",
            lambda value: value is None or is_share(value),
            "A.4: replaces step; 1 is FedRolex",
        ),
        "stagger": switch("clients of a round one step apart (thesis 2.2.2)"),
        "direction": DIRECTION,
    },
    shared=lambda options: not options["stagger"],
    nested=lambda options: (
        not options["stagger"]
        and options["overlap"] is None
        and (isinstance(options["step"], int) or options["step_of"] == "layer")
    ),
)
