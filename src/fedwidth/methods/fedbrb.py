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
from dataclasses import dataclass

import torch
from torch import Tensor

from fedwidth.core.aggregation import weight_shape
from fedwidth.core.index import Index
from fedwidth.core.running_mean import Weight
from fedwidth.core.selection import block, blocks, grid_coordinates
from fedwidth.core.submodel import put, take, view, with_ties
from fedwidth.methods.definition import ROUNDING, Closing, Method, Moment, Option, choice, is_share
from fedwidth.plan.axis import Axis, Units, groups_of, tiling
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
    state, plan, options = closing.state, closing.plan, closing.options
    result = dict(closing.average())
    if not options["broadcast"]:
        return result
    whole = options["copies"] == "blocks"
    senders = Senders(plan)
    means = [Means(summed.index, summed.mean, summed.weight) for summed in closing.sums]
    for name, new in result.items():
        is_trained = name in plan.parameters and (new.is_floating_point() or new.is_complex())
        if is_trained and name not in plan.tied and any(one.index.sliced(name) for one in means):
            here = [one for one in means if name in one.mean and one.index.sliced(name)]
            old = state[name].detach()
            moves = _copy_blocks(old, new, name, here, plan) if whole else _copy_updates(old, name, here, senders)
            result[name] = moves.mul_(options["broadcast"]).add_(new)
    return with_ties(result, plan)


@dataclass(frozen=True)
class Means:
    """The mean of the clients of one size and its weight, by tensor: asked for once, as engines make them on demand."""

    index: Index
    mean: Mapping[str, Tensor]
    weight: Mapping[str, Weight]


class Senders:
    """How many client sizes broadcast to each element of a tensor; tensors with the same blocks share the numbers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._known: dict[object, Tensor] = {}

    def of(self, old: Tensor, name: str, here: Sequence[Means]) -> Tensor:
        """The numbers, at least 1, in a shape that broadcasts over the tensor."""
        shape = tuple(weight_shape(self.plan, name))
        held = tuple(id(kept) for one in here for kept in one.index[name])
        at = shape, held, old.real.dtype, old.device
        if at not in self._known:
            found = torch.full(shape, len(here), dtype=old.real.dtype, device=old.device)
            for one in here:
                put(found, take(found, one.index, name) - 1, one.index, name)
            self._known[at] = found.clamp_(min=1)
        return self._known[at]


def _copy_updates(old: Tensor, name: str, here: Sequence[Means], senders: Senders) -> Tensor:
    """The mean over client sizes of their update, repeated over their grid but for the block they trained."""
    axes = senders.plan.axes[name]
    total = torch.zeros(old.shape, dtype=old.dtype, device=old.device)
    for one in here:
        index, weight = one.index, one.weight[name]
        update = one.mean[name].to(old.dtype) - view(old, index, name)
        if isinstance(weight, Tensor):  # rows of labels that none of its clients has were not trained
            update = update * (weight > 0)
        trained = take(total, index, name)
        _add_tiled(total, update, axes, index.counts)
        put(total, trained, index, name)
    return total.div_(senders.of(old, name, here))


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
            _add_tiled(whole, part, plan.axes[name], index.counts)
            put(whole, trained, index, name)
    return torch.where(senders > 0, total / senders.clamp(min=1) - new, 0.0)


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
