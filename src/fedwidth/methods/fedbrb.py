"""FedBRB: block-wise rolling and block weighted broadcast (Xu et al. 2023).

Rolling: a tensor is cut into a grid of blocks the size of the client's slice of it, numbered row by row (Eq. 4); each
client size starts at the first block and moves on by one block a round over its own grid. In and out blocks of
neighbouring layers are therefore independent: the choice is per tensor, not per width group, and after n^2 rounds at
width 1/n every weight has been trained.

Broadcast: after averaging, the update of each client size is also added, times `broadcast`, to all other blocks of its
grid. Where several sizes broadcast to one block their updates are averaged first. 0 switches it off (the paper's
ablation). With `copies="blocks"` the other blocks move towards the trained block by that share instead.

The paper leaves open: the broadcast weight (0.2 here), what is copied (a block's update, or the block itself), how
one-dimensional tensors roll (`vectors`: over their own blocks, or with the block rows of the weight matrices), and
sizes that are no multiple of the block (the last block is moved back, see `selection.block`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.core.selection import block, blocks, grid_coordinates
from fedwidth.core.submodel import put, take, view, with_ties
from fedwidth.methods.definition import ROUNDING, Closing, Method, Moment, Option, choice, is_share
from fedwidth.methods.shared.broadcast import Means, add_broadcast, add_tiled, holders_of_blocks
from fedwidth.plan.axis import groups_of
from fedwidth.plan.plan import Plan


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> Index:
    """A client holds, of every tensor, the block of its grid whose turn it is in this round (Eq. 4)."""
    blocks_held: dict[str, dict[int, int]] = {}  # by tensor and dimension
    known: dict[tuple[str, int], Tensor] = {}  # by group and block: most tensors of a group hold the same one
    for name, axes in plan.axes.items():
        grid = {dim: _grid_length(plan, counts, groups_of(axis)) for dim, axis in enumerate(axes) if groups_of(axis)}
        number = at.round
        if len(grid) == 1 and len(axes) == 1 and at.options["vectors"] == "rows":
            number //= next(iter(grid.values()))
        blocks_held[name] = dict(zip(grid, grid_coordinates(number, list(grid.values())), strict=True))

    def units(name: str, dim: int, group: str) -> Tensor:
        at = group, blocks_held[name][dim]
        if at not in known:
            known[at] = block(plan.groups[group].size, counts[group], at[1])
        return known[at]

    return Index.of_tensors(plan, counts, units)


def _grid_length(plan: Plan, counts: Mapping[str, int], groups: Sequence[str]) -> int:
    return max(blocks(plan.groups[group].size, counts[group]) for group in groups)


def close(closing: Closing) -> dict[str, Tensor]:
    """Average (FedRolex Eq. 10), then add `broadcast` times the updates that other blocks received."""
    state, sums, plan, share = closing.state, closing.sums, closing.plan, closing.options["broadcast"]
    average = closing.average()
    if not share:
        return average
    if closing.options["copies"] == "updates":
        return add_broadcast(average, state, sums, plan, share)
    result = dict(average)
    for name, here in holders_of_blocks(state, sums, plan).items():
        moves = _copy_blocks(state[name].detach(), result[name], name, here, plan)
        result[name] = moves.mul_(share).add_(result[name])
    return with_ties(result, plan)


def _copy_blocks(old: Tensor, new: Tensor, name: str, here: Sequence[Means], plan: Plan) -> Tensor:
    """The way from `new` to the mean of the blocks that were trained elsewhere; none where all were trained here."""
    total, senders = torch.zeros_like(old), torch.zeros_like(old.real)
    for one in here:
        index, mean, weight = one.index, one.mean[name].to(old.dtype), one.weight[name]
        held = torch.ones_like(mean.real)
        held *= (mean != view(old, index, name)).any()  # a block that is frozen is not copied
        if isinstance(weight, Tensor):
            held *= weight > 0
        for whole, part in ((total, mean * held), (senders, held)):
            trained = take(whole, index, name)
            add_tiled(whole, part, plan.axes[name], index.counts)
            put(whole, trained, index, name)
    return torch.where(senders > 0, total / senders.clamp(min=1) - new, 0.0)


METHOD = Method(
    name="fedbrb",
    title="FedBRB",
    paper="Xu et al. 2023",
    equation="Eqs. 3, 4",
    choose=choose,
    close=close,
    options={
        "rounding": ROUNDING,
        "broadcast": Option(0.2, "a number from 0 to 1", is_share, "weight of the broadcast; 0 is the ablation"),
        "copies": choice("updates", "blocks", help="what is broadcast: a block's update, or the block itself"),
        "vectors": choice("own", "rows", help="how 1-D tensors roll"),
    },
    shared=lambda _: True,
)
