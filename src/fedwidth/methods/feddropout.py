"""Federated Dropout: each client draws its units at random each round (FedRolex Eq. 5).

One draw per width group, not per layer: the published code draws per layer, so residual connections add unrelated
channels and a full-width random sub-model no longer equals the global model.

With `draw="round"` all clients of a round share one permutation of every group, and each takes the first units of it.
What one client holds is drawn as before, but the sub-models of a round lie inside each other, as secure sums need it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedwidth.core.selection import random
from fedwidth.methods.definition import ROUNDING, Method, Moment, choice, per_group
from fedwidth.randomness import numpy_generator


def units(size: int, kept: int, at: Moment) -> Tensor:
    """Draw floor(beta K) units without replacement (FedRolex Eq. 5)."""
    if at.options["draw"] == "round":
        order = numpy_generator(at.seed, "permutation", at.round, at.group_number).permutation(size)
        return torch.from_numpy(np.sort(order[:kept]))
    return random(size, kept, at.generator())


METHOD = Method(
    name="feddropout",
    title="Federated Dropout",
    paper="Caldas et al. 2018",
    equation="FedRolex Eq. 5",
    choose=per_group(units),
    options={
        "rounding": ROUNDING,
        "draw": choice("client", "round", help="whose draw it is: each client's own, or one for all of a round"),
    },
    shared=lambda options: options["draw"] == "round",
    nested=lambda options: options["draw"] == "round",
)
