"""Averaging on vectors: the arithmetic of `aggregation`, a few kernels for a whole cohort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from fedwidth.aggregation import CohortSum, Weight, average_tensor, interpolate, ratio
from fedwidth.engines.faults import named
from fedwidth.engines.flat import FlatState, Layout, SubLayout
from fedwidth.errors import UpdateError
from fedwidth.index import Index
from fedwidth.methods import Task
from fedwidth.updates import accumulable


class FlatSum(CohortSum):
    """A cohort's mean as one vector. `mean` and `weight` by tensor are views of it, for methods that ask for them."""

    def __init__(self, index: Index, sub: SubLayout, where: Tensor) -> None:
        super().__init__(index)
        self.sub = sub
        self.where = where
        self.flat_mean: Tensor | None = None
        self.flat_weight: Weight = 0.0

    def add_flat(self, flat: Tensor, weight: float, rows: Tensor | None) -> None:
        """Add a client's vector. `rows` weighs each element (0 for rows of labels the client lacks), or None.

        The caller checks that the vectors are finite (`check_finite`), once for all clients of a round: asking the
        device each time would make it wait.
        """
        here: Weight = weight if rows is None else rows * weight
        if self.flat_mean is None:
            self.flat_mean, self.flat_weight = flat.clone(), here
        else:
            total = self.flat_weight + here
            interpolate(self.flat_mean, flat, ratio(here, total))
            self.flat_weight = total
        self.clients += 1

    def add_others(self, others: Mapping[str, Tensor], weight: float) -> None:
        """Add the client's tensors that are not in the vector, one by one."""
        for name, tensor in others.items():
            value = accumulable(tensor)
            if name in self.mean:
                self._blend(name, value, weight)
            else:
                self.mean[name], self.weight[name] = value.clone(), weight

    def open(self) -> None:
        """Fill `mean` and `weight` by tensor."""
        assert self.flat_mean is not None
        self.mean.update(self.sub.views(self.flat_mean))
        if isinstance(self.flat_weight, Tensor):
            weights = self.sub.views(self.flat_weight)
            labelled = {name for name, _ in self.index.plan.label_axes}
            self.weight.update({n: w if n in labelled else float(w.flatten()[0]) for n, w in weights.items()})
        else:
            self.weight.update(dict.fromkeys(self.sub.shapes, self.flat_weight))

    def average_together(self, state: Mapping[str, Tensor], sums: Sequence[FlatSum]) -> FlatState:
        """What `aggregation.finalise` does for sums of this kind."""
        return average_flat(self.sub.layout.flatten(state), sums, self.sub.layout)


def average_flat(state: FlatState, sums: Sequence[FlatSum], layout: Layout) -> FlatState:
    """Eq. 10 over vectors: a new state, elements nobody holds keep their bits."""
    result = state.flat.clone()
    total: Weight = 0.0
    for cohort in sums:
        assert cohort.flat_mean is not None
        mean, weight = cohort.flat_mean, cohort.flat_weight
        if isinstance(total, float):
            total = torch.zeros(layout.size, dtype=torch.float64, device=result.device)
        after = total[cohort.where] + weight
        part = result[cohort.where]
        interpolate(part, mean, ratio(weight, after))
        result[cohort.where] = part
        total[cohort.where] = after
    others = dict(state.others)
    for name in others.keys() & {name for cohort in sums for name in cohort.mean}:
        others[name] = average_tensor(others[name], name, sums, layout.plan)
    return FlatState(result, layout, others)


def check_finite(vectors: Sequence[Tensor], subs: Sequence[SubLayout], clients: Sequence[int]) -> None:
    """Refuse vectors with values that are not finite, naming client and tensor; one answer from the device for all."""
    # A sum is finite only if all its values are: a quick look first. It may overflow where they are: then a closer one.
    if bool(torch.isfinite(torch.stack([vector.sum() for vector in vectors])).all()):
        return
    fine = torch.stack([torch.isfinite(vector).all() for vector in vectors])
    if bool(fine.all()):
        return
    number = int((~fine).nonzero()[0])
    views = subs[number].views(vectors[number])
    name = next(n for n, tensor in views.items() if not bool(torch.isfinite(tensor).all()))
    raise UpdateError(
        f"client {clients[number]} sent a value in '{name}' that is not finite; the round keeps the old state"
    )


def check_rows(rows: Tensor, sub: SubLayout, tasks: Sequence[Task], round: int | None = None) -> None:
    """The same for the rows of one matrix: one sum, one answer; names the round too where it is given."""
    if not bool(torch.isfinite(rows.sum(1)).all()):
        for row, task in zip(rows, tasks, strict=True):
            with named("add", round, task) if round is not None else nullcontext():
                check_finite([row], [sub], [task.client])
