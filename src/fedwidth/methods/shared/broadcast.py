"""Updates of one block of a tensor, repeated over the other blocks of its grid.

A client's slice of a tensor is one block of a grid of such blocks. What its clients learnt there may be of use in the
other blocks, too: here the update of every cohort is laid out block by block over the whole tensor, but for the block
that it was trained in, and where several cohorts reach an element the mean of theirs counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedwidth.core.aggregation import RoundSums, weight_shape
from fedwidth.core.cohort import CohortSum
from fedwidth.core.index import Index
from fedwidth.core.running_mean import Weight
from fedwidth.core.submodel import State, put, take, view, with_ties
from fedwidth.plan.axis import Axis, Units, groups_of, tiling
from fedwidth.plan.plan import Plan


@dataclass(frozen=True)
class Means:
    """The mean of the clients of one size and its weight, by tensor: asked for once, as engines make them on demand."""

    index: Index
    mean: Mapping[str, Tensor]
    weight: Mapping[str, Weight]


def add_broadcast(
    average: Mapping[str, Tensor], state: State, sums: Sequence[CohortSum], plan: Plan, share: float
) -> dict[str, Tensor]:
    """The average of a round, and `share` times the mean of the updates that reach each element from other blocks.

    That is added to the parameters that some cohort holds a block of; tied ones stay equal.
    """
    found = sums.add_broadcast(average, state, share) if isinstance(sums, RoundSums) else None
    if found is not None:
        return found
    result, senders = dict(average), Senders(plan)
    for name, here in holders_of_blocks(state, sums, plan).items():
        result[name] = _broadcast_update(state[name].detach(), name, here, senders).mul_(share).add_(average[name])
    return with_ties(result, plan)


def holders_of_blocks(state: State, sums: Sequence[CohortSum], plan: Plan) -> dict[str, list[Means]]:
    """The parameters that some cohort holds a block of, each with the cohorts that do."""
    means = [Means(summed.index, summed.mean, summed.weight) for summed in sums]
    found = {}
    for name, tensor in state.items():
        is_number = tensor.is_floating_point() or tensor.is_complex()
        if name in plan.parameters and is_number and name not in plan.tied:
            here = [one for one in means if name in one.mean and one.index.sliced(name)]
            if here:
                found[name] = here
    return found


class Senders:
    """How many cohorts reach each element of a tensor; tensors with the same blocks share the numbers."""

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


def _broadcast_update(old: Tensor, name: str, here: Sequence[Means], senders: Senders) -> Tensor:
    """The mean over cohorts of their update of one tensor, repeated over their grid but for the block they trained."""
    axes = senders.plan.axes[name]
    total = torch.zeros(old.shape, dtype=old.dtype, device=old.device)
    for one in here:
        index, weight = one.index, one.weight[name]
        update = one.mean[name].to(old.dtype) - view(old, index, name)
        if isinstance(weight, Tensor):  # rows of labels that none of its clients has were not trained
            update = update * (weight > 0)
        trained = take(total, index, name)
        add_tiled(total, update, axes, index.counts)
        put(total, trained, index, name)
    return total.div_(senders.of(old, name, here))


def add_tiled(total: Tensor, update: Tensor, axes: Sequence[Axis], counts: Mapping[str, int]) -> None:
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
