"""FedMosaic: the wide model starts as a mosaic of narrow networks. A method of this project; no paper.

Layers are cut into blocks of one width. Weights between units of different blocks start at 0, so the wide model is at
first a sum of narrow networks, one for each block, that share inputs and outputs. The clients of a round hold
different blocks. A client wider than a block holds several and the weights between them, which it is free to grow; a
narrower one holds a part of a block. Nothing else differs from plain averaging.

Related: Split-Mix (Hong et al. 2022) trains separate base networks and averages their outputs. Here they are one dense
model, clients of all sizes train it, and what connects the networks is learnt.
"""

from __future__ import annotations

import math

from torch import Tensor

from fedwidth.core.selection import block
from fedwidth.core.submodel import with_ties
from fedwidth.methods.definition import ROUNDING, Beginning, Method, Moment, per_group
from fedwidth.methods.shared.tiles import (
    NO_BLOCK,
    block_counts,
    blocks_of,
    divided,
    number_of_blocks,
    width_of,
    width_option,
)

MIN_BLOCK = 0.25
"""Narrower blocks are networks too weak to be worth keeping apart, where clients can hold wider ones."""


def units(size: int, kept: int, at: Moment) -> Tensor:
    """The client holds block number round + client, of blocks as wide as itself."""
    return block(size, kept, at.round + at.client)


def block_width(beginning: Beginning) -> float:
    """The width of a block: as set, else the smallest width of at least 1/4 that a client has, else the largest."""
    if beginning.options["block"] is not None:
        return width_of(beginning.options["block"])
    wide = [width for width in beginning.enrolled if width >= MIN_BLOCK]
    return min(wide) if wide else max(beginning.enrolled)


def start(beginning: Beginning) -> dict[str, Tensor]:
    """The first state, with all weights between different blocks set to 0."""
    plan = beginning.plan
    counts = block_counts(plan, block_width(beginning), "fedmosaic")
    state = dict(beginning.state)
    for name, tensor in state.items():
        dims = divided(plan, name, counts)
        if len(dims) < 2 or name in plan.tied or name not in plan.parameters:
            continue
        axes = plan.axes[name]
        first, *others = dims
        for dim in others:
            common = math.gcd(*(number_of_blocks(plan, axes[d], counts) for d in (first, dim)))
            rows, columns = (blocks_of(axes[d], counts) for d in (first, dim))
            same = (rows[:, None] - columns) % common == 0
            same |= (rows[:, None] == NO_BLOCK) | (columns == NO_BLOCK)
            shape = [len(rows) if d == first else len(columns) if d == dim else 1 for d in range(tensor.dim())]
            tensor = tensor * same.view(shape).to(tensor)
        state[name] = tensor
    return with_ties(state, plan)


METHOD = Method(
    name="fedmosaic",
    title="FedMosaic",
    paper="this project",
    equation="docs/methods/fedmosaic.md",
    choose=per_group(units),
    options={
        "rounding": ROUNDING,
        "block": width_option("width of the networks the model starts as"),
    },
    start=start,
)
