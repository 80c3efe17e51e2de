"""Aggregation: overlapping updates become the new global state (FedRolex Eq. 10, appendix A.2).

    theta[k] = sum over m in M_k of p_m theta_m[k]  /  sum over m in M_k of p_m

where M_k are the clients that hold element k; an element nobody holds keeps its bits.

Clients that hold the same positions are averaged first (`cohort.py`); here the means of the cohorts are averaged where
they overlap, as a running mean over cohorts (`running_mean.py`).
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
    """The sums of a round in an engine that averages them in its own way, with the same result."""

    def average(self, state: State) -> dict[str, Tensor]:
        """What `finalise` gives."""
        raise NotImplementedError


def finalise(state: State, sums: Sequence[CohortSum], plan: Plan) -> dict[str, Tensor]:
    """Eq. 10 over all cohorts: a new state; elements no cohort holds keep their bits, `state` is not touched."""
    if isinstance(sums, RoundSums):
        plan.check_state(state)
        return sums.average(state)
    for cohort in sums:
        if not isinstance(cohort, CohortSum):
            raise UpdateError(f"expected a CohortSum, not a {type(cohort).__name__}; fedwidth.merge takes updates")
        check_index(plan, cohort.index)
    plan.check_state(state)
    for cohort in sums:
        check_alike(cohort.mean, state, "a cohort")
    firsts = {name: plan.tied[name] if plan.tied.get(name) in state else name for name in state}
    averages = {name: average_tensor(state[name].detach(), name, sums, plan) for name in dict.fromkeys(firsts.values())}
    return {name: averages[first] for name, first in firsts.items()}


def merge(state: State, updates: Iterable[Update | tuple[State, Index, float]], plan: Plan) -> dict[str, Tensor]:
    """The new global state after averaging `(sub, index, weight)` updates element by element (Eq. 10)."""
    return finalise(state, sum_cohorts(updates, plan, copy=False), plan)


def average_tensor(old: Tensor, name: str, sums: Sequence[CohortSum], plan: Plan) -> Tensor:
    """The new value of one tensor, from the cohorts in order."""
    here = [cohort for cohort in sums if name in cohort.mean]
    if not here:
        return old.clone()
    result = accumulable(old)
    total: Weight = 0.0  # one number while every cohort so far held the whole tensor, then one per element
    for cohort in here:
        mean, weight, index = cohort.mean[name], cohort.weight[name], cohort.index
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
    return _back(result, old)


def _average_part(result: Tensor, total: Tensor, mean: Tensor, weight: Weight, index: Index, name: str) -> None:
    """Blend one cohort's narrow mean into `result` and add its weight to `total`, in place."""
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
    """The elements of a full tensor (or vector) that a cohort holds."""

    def take(self, full: Tensor) -> Tensor:
        """These elements, to be changed in place."""

    def put(self, full: Tensor, part: Tensor) -> None:
        """Write them back, changed."""


def blend_into(
    result: Tensor, total: Tensor, mean: Tensor, where: Where, add_weight: Callable[[Tensor], Weight]
) -> None:
    """Average one cohort into the state, as a running mean over cohorts (Eq. 10), in place.

    `total` is the weight that each element has so far; `add_weight` adds the cohort's to it, in place, and says what
    share of it the cohort's now is.
    """
    weights = where.take(total)
    share = add_weight(weights)
    where.put(total, weights)
    del weights  # of a large model no more is held than needed at a time
    part = where.take(result)
    interpolate(part, mean, share)
    where.put(result, part)


def add_share(before: Tensor, weight: Weight) -> Weight:
    """Add a weight to those so far, in place, and give its share of them."""
    return ratio(weight, before.add_(weight))


class _Everywhere:
    """All elements: a view, which is changed where it lies."""

    def take(self, full: Tensor) -> Tensor:
        return full

    def put(self, full: Tensor, part: Tensor) -> None:
        pass


EVERYWHERE = _Everywhere()


def weight_shape(plan: Plan, name: str) -> list[int]:
    """Weights differ along axes that can be sliced and along classes; they broadcast over the others (kernels)."""
    return [
        axis.size if groups_of(axis) or (name, dim) in plan.label_axes else 1
        for dim, axis in enumerate(plan.axes[name])
    ]


def _back(result: Tensor, old: Tensor) -> Tensor:
    """The average in the dtype of the old value; integers that did not change keep bits that a float has not."""
    if result.dtype == old.dtype or old.is_floating_point() or old.is_complex():
        return result.to(old.dtype)
    return torch.where(result == old.double(), old, result.round().to(old.dtype))
