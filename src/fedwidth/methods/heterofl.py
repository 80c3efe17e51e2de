"""HeteroFL: the first units, the same in every round; smaller sub-models are nested in larger ones (FedRolex Eq. 6)."""

from __future__ import annotations

from torch import Tensor

from fedwidth.core.selection import prefix
from fedwidth.methods.definition import ROUNDING, Method, Moment, per_group


def units(size: int, kept: int, at: Moment) -> Tensor:
    """The first units, {0, …, floor(beta K) - 1} (FedRolex Eq. 6)."""
    del at
    return prefix(size, kept)


METHOD = Method(
    name="heterofl",
    title="HeteroFL",
    paper="Diao, Ding, Tarokh 2021",
    equation="FedRolex Eq. 6",
    choose=per_group(units),
    options={"rounding": ROUNDING},
    shared=lambda _: True,
    nested=lambda _: True,
)
