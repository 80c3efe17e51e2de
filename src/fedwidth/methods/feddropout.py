"""Federated Dropout: each client draws its units at random each round (FedRolex Eq. 5).

One draw per width group, not per layer: the published code draws per layer, so residual connections add unrelated
channels and a full-width random sub-model no longer equals the global model.
"""

from __future__ import annotations

from torch import Tensor

from fedwidth.core.selection import random
from fedwidth.methods.definition import ROUNDING, Method, Moment, per_group


def units(size: int, kept: int, at: Moment) -> Tensor:
    """Draw floor(beta K) units without replacement (FedRolex Eq. 5)."""
    return random(size, kept, at.generator())


METHOD = Method(
    name="feddropout",
    title="Federated Dropout",
    paper="Caldas et al. 2018",
    equation="FedRolex Eq. 5",
    choose=per_group(units),
    options={"rounding": ROUNDING},
)
