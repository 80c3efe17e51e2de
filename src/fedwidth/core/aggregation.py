"""Aggregation: overlapping updates become the new global state (FedRolex Eq. 10, appendix A.2).

    theta[k] = sum over m in M_k of p_m theta_m[k]  /  sum over m in M_k of p_m

where M_k are the clients that hold element k; an element nobody holds keeps its bits.

Clients that hold the same positions are averaged first (`cohort.py`). Here these means are averaged where they overlap,
one after the other (`running_mean.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from fedwidth.core.cohort import CohortSum, sum_cohorts
from fedwidth.core.index import Index
from fedwidth.core.running_mean import Weight, accumulable, interpolate, interpolated, ratio
from fedwidth.core.submodel import State, check_index, put, take
from fedwidth.core.updates import Update, check_alike
from fedwidth.errors import UpdateError
from fedwidth.plan.axis import groups_of
from fedwidth.plan.plan import Plan


class RoundSums(Sequence[CohortSum]):
    """The sums of one round, held by an engine that averages them in a way of its own with the same result."""

    def average(self, state: State) -> dict[str, Tensor]:
        """The new global state: what `finalise` would give."""
        raise NotImplementedError

    def add_broadcast(self, average: State, state: State, share: float) -> dict[str, Tensor] | None:
        """An average with a broadcast of updates (`methods.shared.broadcast`); None: no way of its own."""
        del average, state, share
        return None


def finalise(state: State, sums: Sequence[CohortSum], plan: Plan) -> dict[str, Tensor]:
    """The new global state: the weighted average of all sums, element by element (FedRolex Eq. 10).

    Elements that nobody held keep their bits. `state` itself is not changed.
    """
    if isinstance(sums, RoundSums):
        plan.check_state(state)
        return sums.average(state)
    for summed in sums:
        if not isinstance(summed, CohortSum):
            raise UpdateError(f"expected a CohortSum, not a {type(summed).__name__}; fedwidth.merge takes updates")
        check_index(plan, summed.index)
    plan.check_state(state)
    for summed in sums:
        check_alike(summed.mean, state, "a cohort")
    firsts = {name: plan.tied[name] if plan.tied.get(name) in state else name for name in state}
    averages = {name: average_tensor(state[name].detach(), name, sums, plan) for name in dict.fromkeys(firsts.values())}
    return {name: averages[first] for name, first in firsts.items()}


def merge(state: State, updates: Iterable[Update | tuple[State, Index, float]], plan: Plan) -> dict[str, Tensor]:
    """The new global state after averaging `(sub, index, weight)` updates element by element (FedRolex Eq. 10)."""
    return finalise(state, sum_cohorts(updates, plan, copy=False), plan)


def average_tensor(old: Tensor, name: str, sums: Sequence[CohortSum], plan: Plan) -> Tensor:
    """The average of one tensor over the sums that hold some of it, taken in their order."""
    here = [summed for summed in sums if name in summed.mean]
    if not here:
        return old.clone()
    result = accumulable(old)
    total: Weight = 0.0  # one number while all clients so far held the whole tensor, then one per element
    for summed in here:
        mean, weight, index = summed.mean[name], summed.weight[name], summed.index
        if not index.sliced(name) and isinstance(weight, float) and isinstance(total, float):
            total += weight
            result = interpolated(result, mean, weight / total)
            continue
        if isinstance(total, float):
            if not total:  # still the old value itself; from here on parts are averaged in place
                result = result.clone()
            total = torch.full(weight_shape(plan, name), total, dtype=torch.float64, device=old.device)
        if isinstance(weight, Tensor):
            weight = weight.expand([n if total.shape[d] > 1 else 1 for d, n in enumerate(mean.shape)])
        _average_part(result, total, mean, weight, index, name)
    return in_dtype_of(result, old)


def _average_part(result: Tensor, total: Tensor, mean: Tensor, weight: Weight, index: Index, name: str) -> None:
    """Blend the narrow mean of one sum into `result` and add its weight to `total`, in place."""
    pieces = index.pieces(name)
    if pieces is None:
        weights, part = take(total, index, name), take(result, index, name)
        blend_into(part, weights, mean, EVERYWHERE, partial(add_share, weight=weight))
        put(total, weights, index, name)
        put(result, part, index, name)
        return
    for full, narrow in pieces:
        own = weight[narrow] if isinstance(weight, Tensor) else weight
        blend_into(result[full], total[full], mean[narrow], EVERYWHERE, partial(add_share, weight=own))


class Where(Protocol):
    """The elements of a full tensor (or vector) that the clients of one sum hold."""

    def take(self, full: Tensor) -> Tensor:
        """These elements of a full tensor: a copy, or a view, that may be changed in place."""

    def put(self, full: Tensor, part: Tensor) -> None:
        """Write these elements, as they are now, back into the full tensor."""


def blend_into(
    result: Tensor, total: Tensor, mean: Tensor, where: Where, add_weight: Callable[[Tensor], Weight]
) -> None:
    """Blend the mean of one sum into the running average over all sums (FedRolex Eq. 10), in place.

    `total` is the weight that each element has so far. `add_weight` adds the weight of this sum to it, in place, and
    returns what share of the new total that is.
    """
    weights = where.take(total)
    share = add_weight(weights)
    where.put(total, weights)
    del weights  # of a large model no more is held than needed at a time
    part = where.take(result)
    interpolate(part, mean, share)
    where.put(result, part)


def add_share(before: Tensor, weight: Weight) -> Weight:
    """Add a weight to the weights so far, in place, and return what share of the new total it is."""
    return ratio(weight, before.add_(weight))


class _Everywhere:
    """Every element of a tensor: `take` gives the tensor itself, so that nothing has to be written back."""

    def take(self, full: Tensor) -> Tensor:
        return full

    def put(self, full: Tensor, part: Tensor) -> None:
        pass


EVERYWHERE = _Everywhere()


def weight_shape(plan: Plan, name: str) -> list[int]:
    """The shape of the weights of a tensor: full along axes that can be sliced and along classes, else 1 (kernels)."""
    return [
        axis.size if groups_of(axis) or (name, dim) in plan.label_axes else 1
        for dim, axis in enumerate(plan.axes[name])
    ]


def in_dtype_of(result: Tensor, old: Tensor) -> Tensor:
    """The average in the dtype of the old value; integers that did not change keep bits that a float cannot hold."""
    if result.dtype == old.dtype or old.is_floating_point() or old.is_complex():
        return result.to(old.dtype)
    return torch.where(result == old.double(), old, result.round().to(old.dtype))
