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

from fedwidth.core.aggregation import weight_shape
from fedwidth.core.cohort import CohortSum
from fedwidth.core.index import Index
from fedwidth.core.selection import block, blocks, grid_coordinates
from fedwidth.core.submodel import put, take, with_ties
from fedwidth.methods.definition import ROUNDING, Closing, Method, Moment, Option, choice, is_share
from fedwidth.plan.axis import Axis, Units, groups_of, tiling
from fedwidth.plan.plan import Plan


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> Index:
    """A client holds, of every tensor, the block of its grid whose turn it is in this round (Eq. 4)."""
    blocks_held: dict[str, dict[int, int]] = {}  # by tensor and dimension
    for name, axes in plan.axes.items():
        grid = {dim: _grid_length(plan, counts, groups_of(axis)) for dim, axis in enumerate(axes) if groups_of(axis)}
        number = at.round
        if len(grid) == 1 and len(axes) == 1 and at.options["vectors"] == "rows":
            number //= next(iter(grid.values()))
        blocks_held[name] = dict(zip(grid, grid_coordinates(number, list(grid.values())), strict=True))
    return Index.of_tensors(
        plan,
        counts,
        lambda name, dim, group: block(plan.groups[group].size, counts[group], blocks_held[name][dim]),
    )


def _grid_length(plan: Plan, counts: Mapping[str, int], groups: Sequence[str]) -> int:
    return max(blocks(plan.groups[group].size, counts[group]) for group in groups)


def close(closing: Closing) -> dict[str, Tensor]:
    """Average (FedRolex Eq. 10), then add `broadcast` times the updates that other blocks received."""
    state, sums, plan, options = closing.state, closing.sums, closing.plan, closing.options
    result = dict(closing.average())
    if not options["broadcast"]:
        return result
    for name, new in result.items():
        is_trained = name in plan.parameters and (new.is_floating_point() or new.is_complex())
        if is_trained and name not in plan.tied and any(summed.index.sliced(name) for summed in sums):
            old, whole = state[name].detach(), options["copies"] == "blocks"
            moves = _copy_blocks(old, new, name, sums, plan) if whole else _copy_updates(old, name, sums, plan)
            result[name] = moves.mul_(options["broadcast"]).add_(new)
    return with_ties(result, plan)


def _copy_updates(old: Tensor, name: str, sums: Sequence[CohortSum], plan: Plan) -> Tensor:
    """The mean over client sizes of their update, repeated over their grid but for the block they trained."""
    here = _broadcasting(name, sums)
    total = torch.zeros(old.shape, dtype=old.dtype, device=old.device)
    senders = torch.full(weight_shape(plan, name), len(here), dtype=old.real.dtype, device=old.device)
    for summed in here:
        index = summed.index
        update = summed.mean[name].to(old.dtype) - take(old, index, name)
        weight = summed.weight[name]
        if isinstance(weight, Tensor):  # rows of labels that none of its clients has were not trained
            update = update * (weight > 0)
        trained = take(total, index, name)
        _add_tiled(total, update, plan.axes[name], index.counts)
        put(total, trained, index, name)
        put(senders, take(senders, index, name) - 1, index, name)
    return total.div_(senders.clamp_(min=1))


def _copy_blocks(old: Tensor, new: Tensor, name: str, sums: Sequence[CohortSum], plan: Plan) -> Tensor:
    """The way from `new` to the mean of the blocks that were trained elsewhere; none where all were trained here."""
    total, senders = torch.zeros_like(old), torch.zeros_like(old.real)
    for summed in _broadcasting(name, sums):
        index, mean, weight = summed.index, summed.mean[name].to(old.dtype), summed.weight[name]
        held = torch.ones_like(mean.real)
        held *= (mean != take(old, index, name)).any()  # a block that is frozen is not copied
        if isinstance(weight, Tensor):
            held *= weight > 0
        for whole, part in ((total, mean * held), (senders, held)):
            trained = take(whole, index, name)
            _add_tiled(whole, part, plan.axes[name], index.counts)
            put(whole, trained, index, name)
    return torch.where(senders > 0, total / senders.clamp(min=1) - new, 0.0)


def _broadcasting(name: str, sums: Sequence[CohortSum]) -> list[CohortSum]:
    return [summed for summed in sums if name in summed.mean and summed.index.sliced(name)]


def _add_tiled(total: Tensor, update: Tensor, axes: Sequence[Axis], counts: Mapping[str, int]) -> None:
    """Add a narrow tensor, repeated over the blocks of its grid, in place."""
    blocks, block = [], []  # an axis of whole blocks is seen as (blocks, block): it repeats without being copied
    for dim, axis in enumerate(axes):
        if isinstance(axis, Units) and axis.size % counts[axis.group] == 0:
            blocks += [axis.size // counts[axis.group], counts[axis.group]]
            block += [1, counts[axis.group]]
            continue
        if groups_of(axis):
            update = update.index_select(dim, tiling(axis, counts).to(update.device))
        blocks.append(axis.size)
        block.append(axis.size)
    total.view(blocks).add_(update.reshape(block))


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
