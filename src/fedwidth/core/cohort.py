"""The clients of a round that hold the same positions are averaged together: one `CohortSum` for each index.

Only a mean and a total weight are kept, so memory does not grow with the number of clients, and what two workers have
summed of the same positions can be merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.core.running_mean import Weight, accumulable, interpolate, interpolated, ratio
from fedwidth.core.submodel import State, check_index
from fedwidth.core.updates import Update, check_alike, check_update
from fedwidth.errors import SelectionError, UpdateError
from fedwidth.plan.plan import Plan


class CohortSum:
    """The weighted mean of the sub-models of all clients that hold the same positions, and their total weight.

    Mean times weight is the sum it is named after: one adds updates to it (`add`) or another sum of the same positions
    (`merge`). `finalise` makes the new global state of all sums of a round.
    """

    def __init__(self, index: Index) -> None:
        if not isinstance(index, Index):
            raise SelectionError(f"a sum needs the Index of its cohort, not a {type(index).__name__}")
        self.index = index
        self.reports: dict[str, CohortSum] = {}
        """What clients reported beside their sub-models, by name of the report. Every client weighs 1."""
        self.clients = 0
        self._mean: dict[str, Tensor] = {}
        self._weight: dict[str, Weight] = {}
        self._borrowed: set[str] = set()

    @property
    def mean(self) -> Mapping[str, Tensor]:
        """The weighted mean of the updates so far, by the name of the tensor."""
        return self._mean

    @property
    def weight(self) -> Mapping[str, Weight]:
        """The total weight of the updates so far, by the name of the tensor."""
        return self._weight

    @property
    def total_weight(self) -> float:
        """What its clients weigh together: where rows of classes are weighed one by one, in the rows that all have."""
        return max(float(w.max()) if isinstance(w, Tensor) else w for w in self.weight.values())

    def add(self, update: Update, *, copy: bool = True) -> None:
        """Add one client's update. An update that is refused leaves the sum as it was.

        `copy=False` borrows the tensors of the first update instead of copying them, for callers that do not change
        them until the sum is finalised.
        """
        check_update(update, self.index)
        check_alike(update.sub, self.mean, update.who)
        plan = self.index.plan
        for name, tensor in update.sub.items():
            if plan.tied.get(name) not in update.sub and name not in plan.untrained:
                self._add(name, tensor.detach(), label_weight(name, update, plan), copy=copy)
        for kind, tensors in update.reports.items():
            total = self.reports.setdefault(kind, CohortSum(self.index))
            for name, tensor in tensors.items():
                total._add(name, tensor.detach(), 1.0, copy=copy)
            total.clients += 1
        self.clients += 1

    @classmethod
    def of(cls, index: Index, mean: Mapping[str, Tensor], weight: Mapping[str, Weight], clients: int) -> CohortSum:
        """A sum whose mean and weight were computed elsewhere."""
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
        """Add another sum of the same positions, such as that of a second worker."""
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


def sum_cohorts(
    updates: Iterable[Update | tuple[State, Index, float]], plan: Plan, *, copy: bool = True
) -> list[CohortSum]:
    """Add up updates: one `CohortSum` for each index, in order of first appearance."""
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


def label_weight(name: str, update: Update, plan: Plan) -> Weight:
    """What an update weighs in one tensor: one number, or one for each class where its labels say which it has."""
    dims = [dim for tensor, dim in plan.label_axes if tensor == name]
    if update.labels is None or not dims:
        return update.weight
    tensor = update.sub[name]
    classes = tensor.shape[dims[0]]
    weight = torch.zeros(classes, dtype=torch.float64, device=tensor.device)
    weight[update.labels.to(tensor.device)] = update.weight
    return weight.view([-1 if dim == dims[0] else 1 for dim in range(tensor.dim())])
