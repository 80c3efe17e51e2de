"""Aggregation: overlapping updates become the new global state (FedRolex Eq. 10, appendix A.2).

    theta[k] = sum over m in M_k of p_m theta_m[k]  /  sum over m in M_k of p_m

where M_k are the clients that hold element k; an element nobody holds keeps its bits.

Clients with one index form a cohort; its `CohortSum` is a streaming weighted sum kept as (mean, total weight), so
memory does not grow with clients and two halves of a cohort merge. The mean is updated by linear interpolation,
mean += (x - mean) * w / (W + w), not as a quotient of sums: then one client, or clients that agree, give exactly their
value in every dtype, and training that changes nothing changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.core.submodel import State, check_index, put, take
from fedwidth.core.updates import Update, accumulable, check_alike, check_update, weigh
from fedwidth.errors import SelectionError, UpdateError
from fedwidth.plan.axis import groups_of
from fedwidth.plan.plan import Plan

__all__ = [
    "CohortSum",
    "RoundSums",
    "Update",
    "Weight",
    "finalise",
    "interpolate",
    "merge",
    "ratio",
    "sum_cohorts",
    "weigh",
]

Weight = float | Tensor
"""One number, or a tensor that broadcasts over the narrow tensor (rows of absent labels weigh nothing)."""


class CohortSum:
    """Weighted mean of the sub-models of clients that share one index: `add`, `merge`, then `finalise`."""

    def __init__(self, index: Index) -> None:
        if not isinstance(index, Index):
            raise SelectionError(f"a sum needs the Index of its cohort, not a {type(index).__name__}")
        self.index = index
        self.reports: dict[str, CohortSum] = {}
        """What clients reported beside their sub-models, each client with weight 1: mean times weight is the sum."""
        self.clients = 0
        self._mean: dict[str, Tensor] = {}
        self._weight: dict[str, Weight] = {}
        self._borrowed: set[str] = set()

    @property
    def mean(self) -> Mapping[str, Tensor]:
        """The weighted mean so far, by tensor."""
        return self._mean

    @property
    def weight(self) -> Mapping[str, Weight]:
        """The weight so far, by tensor."""
        return self._weight

    def add(self, update: Update, *, copy: bool = True) -> None:
        """Add one client's update; the sum is unchanged if the update is refused.

        `copy=False` borrows the first update's tensors instead of copying them: for callers that keep them as they
        are until the sum is finalised.
        """
        check_update(update, self.index)
        check_alike(update.sub, self.mean, update.who)
        plan = self.index.plan
        for name, tensor in update.sub.items():
            if plan.tied.get(name) not in update.sub:
                self._add(name, tensor.detach(), _label_weight(name, update, plan), copy=copy)
        for kind, tensors in update.reports.items():
            total = self.reports.setdefault(kind, CohortSum(self.index))
            for name, tensor in tensors.items():
                total._add(name, tensor.detach(), 1.0, copy=copy)
            total.clients += 1
        self.clients += 1

    @classmethod
    def of(cls, index: Index, mean: Mapping[str, Tensor], weight: Mapping[str, Weight], clients: int) -> CohortSum:
        """A sum that was made elsewhere."""
        made = cls(index)
        made._mean, made._weight, made.clients = dict(mean), dict(weight), clients
        return made

    def _add(self, name: str, tensor: Tensor, weight: Weight, *, copy: bool = True) -> None:
        value = accumulable(tensor)
        if name in self._mean:
            self._blend(name, value, weight)
            return
        self._mean[name] = value.clone() if copy else value
        self._weight[name] = weight
        if not copy:
            self._borrowed.add(name)

    def merge(self, other: CohortSum) -> None:
        """Add another part of the same cohort, e.g. what a second worker summed."""
        if not isinstance(other, CohortSum) or other.index != self.index:
            raise SelectionError("only sums of one index can be merged; these two hold different positions")
        check_alike(other.mean, self.mean, "the other sum")
        for name, value in other.mean.items():
            self._add(name, value, other.weight[name])
        for kind, total in other.reports.items():
            self.reports.setdefault(kind, CohortSum(self.index)).merge(total)
        self.clients += other.clients

    def _blend(self, name: str, value: Tensor, weight: Weight) -> None:
        total = self._weight[name] + weight
        share = ratio(weight, total)
        if name in self._borrowed:
            self._mean[name] = interpolated(self._mean[name], value, share)
            self._borrowed.remove(name)
        else:
            interpolate(self._mean[name], value, share)
        self._weight[name] = total


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


def sum_cohorts(
    updates: Iterable[Update | tuple[State, Index, float]], plan: Plan, *, copy: bool = True
) -> list[CohortSum]:
    """One `CohortSum` per index, in order of first appearance."""
    sums: dict[str, CohortSum] = {}
    for number, given in enumerate(updates):
        if isinstance(given, Update):
            update = given
        elif isinstance(given, (tuple, list)) and len(given) == 3:
            update = Update(*given, client=number)
        else:
            raise UpdateError(f"update {number} is neither (sub, index, weight) nor an Update")
        check_index(plan, update.index)
        sums.setdefault(update.index.key, CohortSum(update.index)).add(update, copy=copy)
    return list(sums.values())


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


def _label_weight(name: str, update: Update, plan: Plan) -> Weight:
    """The client's weight: one number, or per class where the tensor has a class axis and the labels are given."""
    dims = [dim for tensor, dim in plan.label_axes if tensor == name]
    if update.labels is None or not dims:
        return update.weight
    tensor = update.sub[name]
    classes = tensor.shape[dims[0]]
    weight = torch.zeros(classes, dtype=torch.float64, device=tensor.device)
    weight[update.labels.to(tensor.device)] = update.weight
    return weight.view([-1 if dim == dims[0] else 1 for dim in range(tensor.dim())])


def ratio(weight: Weight, total: Weight) -> Weight:
    """weight / total, and 0 where nothing weighs anything."""
    if isinstance(total, float):
        return weight / total
    if not isinstance(weight, Tensor):  # a weight is above 0, so the total is too
        # Not `weight / total`: torch computes number / tensor as number * (1 / tensor), not 1 where they agree.
        return total.new_full((), weight) / total
    return torch.where(total > 0, weight / total, 0.0)


def interpolate(mean: Tensor, value: Tensor, share: Weight) -> None:
    """mean += (value - mean) * share in place; exact at share 0 and 1, and where the two agree."""
    if isinstance(share, Tensor):
        mean.lerp_(value, share.to(mean.dtype))
    elif share == 1.0:
        mean.copy_(value)
    else:
        mean.lerp_(value, share)


def interpolated(mean: Tensor, value: Tensor, share: Weight) -> Tensor:
    """The same as a new tensor; one pass over memory less than a copy and then `interpolate`."""
    if isinstance(share, Tensor):
        return mean.lerp(value, share.to(mean.dtype))
    # Not a clone of the value: it may lie otherwise in memory than the state it becomes part of.
    return torch.empty_like(mean).copy_(value) if share == 1.0 else mean.lerp(value, share)


def _back(result: Tensor, old: Tensor) -> Tensor:
    """The average in the dtype of the old value; integers that did not change keep bits that a float has not."""
    if result.dtype == old.dtype or old.is_floating_point() or old.is_complex():
        return result.to(old.dtype)
    return torch.where(result == old.double(), old, result.round().to(old.dtype))
