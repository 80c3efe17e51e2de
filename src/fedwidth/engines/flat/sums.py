"""Averaging on vectors: the arithmetic of `core.aggregation`, in a few kernels for a whole cohort."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedwidth.core.aggregation import RoundSums, average_tensor, blend_into
from fedwidth.core.cohort import CohortSum
from fedwidth.core.index import Index
from fedwidth.core.running_mean import Weight, interpolate, ratio
from fedwidth.engines.faults import error_context
from fedwidth.engines.flat.layout import FlatState, Layout, SubLayout
from fedwidth.engines.flat.tensor_layout import TensorLayout
from fedwidth.engines.memory import out_of_memory
from fedwidth.errors import UpdateError
from fedwidth.methods import Task


class FlatSum(CohortSum):
    """A cohort's mean as one vector. `mean` and `weight` by tensor are views of it, made for methods that ask."""

    def __init__(self, index: Index, sub: SubLayout, positions: Tensor) -> None:
        super().__init__(index)
        self.sub = sub
        self.positions = positions
        """Where the elements of the cohort's sub-model lie in the state's vector."""
        self.flat_mean: Tensor | None = None
        self._views: dict[str, Tensor] | None = None
        """The mean by tensor, once it was asked for; the vector is only changed in place."""
        self.flat_weight = 0.0
        """The weight of every element but the labelled ones: clients differ in those alone."""
        self.label_weight: Tensor | None = None
        """The weight of each labelled element (`sub.classes`); None while it is `flat_weight`, as all clients had all
        classes."""

    def add_flat(self, flat: Tensor, weight: float, rows: Tensor | None) -> None:
        """Add a client's vector. `rows` is 0 for labelled elements of classes the client lacks and 1 for others.

        None stands for ones.

        The caller checks that the vectors are finite (`check_finite`), once for all clients of a round: asking the
        device each time would make it wait.
        """
        here: Weight = weight if rows is None else rows * weight
        before: Weight = self.flat_weight if self.label_weight is None else self.label_weight
        total, labels = self.flat_weight + weight, before + here
        if self.flat_mean is None:
            self.flat_mean = flat.clone()
        elif isinstance(labels, Tensor):
            sub, mean, share = self.sub, self.flat_mean, ratio(here, labels)
            assert isinstance(share, Tensor)
            shares = sub.labelled_parts_of(share.to(mean.dtype))
            for part, value, own in zip(sub.labelled_parts(mean), sub.labelled_parts(flat), shares, strict=True):
                interpolate(part, value, own)
            for part, value in zip(sub.other_parts(mean), sub.other_parts(flat), strict=True):
                interpolate(part, value, ratio(weight, total))
        else:
            interpolate(self.flat_mean, flat, ratio(weight, total))
        self.flat_weight, self.label_weight = total, labels if isinstance(labels, Tensor) else None
        self.clients += 1

    def add_others(self, others: Mapping[str, Tensor], weight: float) -> None:
        """Add a client's tensors that are not in the vector, one by one."""
        for name, tensor in others.items():
            self._add(name, tensor, weight)

    def add_reports(self, reports: Mapping[str, Tensor]) -> None:
        """Add what a client reports beside its sub-model, as vectors like it."""
        for name, vector in reports.items():
            if name not in self.reports:
                self.reports[name] = FlatSum(self.index, self.sub, self.positions)
            total = self.reports[name]
            assert isinstance(total, FlatSum)
            total.add_flat(vector, 1.0, None)

    @property
    def mean(self) -> Mapping[str, Tensor]:
        """The mean by tensor: views of the vector, and what is not in it."""
        if self.flat_mean is None:
            return self._mean
        if self._views is None:
            self._views = self.sub.views(self.flat_mean)
        return {**self._views, **self._mean}

    @property
    def weight(self) -> Mapping[str, Weight]:
        """The weight by tensor: a number, or one for each element where classes count."""
        found: dict[str, Weight] = dict.fromkeys(self.sub.shapes, self.flat_weight)
        if self.label_weight is not None:
            found |= self.sub.labelled_views(self.label_weight)
        return {**found, **self._weight}

    @property
    def others(self) -> Iterable[str]:
        """The tensors that are not in the vector."""
        return self._mean

    @property
    def room(self) -> int:
        """The bytes that averaging the cohort into a state takes for a while, beside the state and its weights.

        For every element that is the weight so far, and then also the cohort's share of it; when the weights are gone,
        the share, the share in the state's dtype and the state's value are no more. Labelled elements (a few of an
        image model, most of a language model) come on top: first their weights, two results of `ratio` on the way and
        its mask, then their share.
        """
        weight, elements = torch.float64.itemsize, self.sub.size
        labelled = 0 if self.label_weight is None else self.label_weight.numel()
        on_the_way = weight * elements + (3 * weight + torch.bool.itemsize) * labelled
        return max(on_the_way, 2 * weight * elements + weight * labelled)


class FlatSums(RoundSums):
    """The sums of a round's cohorts as vectors."""

    def __init__(self, sums: Sequence[FlatSum], layout: Layout) -> None:
        self._sums, self._layout = list(sums), layout
        self._known: tuple[Mapping[str, Tensor], FlatState] | None = None

    def __getitem__(self, number: Any) -> Any:
        return self._sums[number]

    def __len__(self) -> int:
        return len(self._sums)

    def average_beforehand(self, state: Mapping[str, Tensor]) -> None:
        """Queue the averaging behind a training that is still under way, so that the device need not wait."""
        if isinstance(state, FlatState):
            self._known = state, average_flat(state, self._sums, self._layout)

    def is_averaged(self, state: Mapping[str, Tensor]) -> bool:
        """Whether the sums have been averaged into this state already."""
        return self._known is not None and self._known[0] is state

    def average(self, state: Mapping[str, Tensor]) -> FlatState:
        """The state after the sums were averaged into it."""
        if self._known is not None and self._known[0] is state:
            return self._known[1]
        return average_flat(self._layout.flatten(state), self._sums, self._layout)

    def add_broadcast(
        self, average: Mapping[str, Tensor], state: Mapping[str, Tensor], share: float
    ) -> FlatState | None:
        """An average, and a share of the updates that reach each element from other blocks."""
        if not isinstance(average, FlatState):
            return None
        try:
            moves = broadcast_flat(self._layout.flatten(state), self._sums)
        except Exception as error:
            if not out_of_memory(error):
                raise
            return None  # tensor by tensor it takes far less
        return FlatState(moves.mul_(share).add_(average.flat), self._layout, average.others)


def broadcast_flat(state: FlatState, sums: Sequence[FlatSum]) -> Tensor:
    """What reaches each element from other blocks, 0 if nothing: the arithmetic of `methods.shared.broadcast`."""
    total, senders = torch.zeros_like(state.flat), torch.zeros_like(state.flat.real)
    for cohort in sums:
        assert cohort.flat_mean is not None
        where, source = Positions(cohort.positions), cohort.sub.repeats
        update = cohort.flat_mean - where.take(state.flat)
        if cohort.label_weight is not None:  # rows of labels that none of its clients has were not trained
            trained = cohort.label_weight > 0
            cohort.sub.put_labelled(update, cohort.sub.take_labelled(update) * trained)
        update = functional.pad(update, (0, 1))  # where nothing is repeated, the element behind the last is: 0
        for whole, part in ((total, update.index_select(0, source)), (senders, source < cohort.sub.size)):
            here = where.take(whole)
            whole += part
            where.put(whole, here)
    return total.div_(senders.clamp_(min=1))


def average_flat(state: FlatState, sums: Sequence[FlatSum], layout: Layout) -> FlatState:
    """Eq. 10 over vectors: a new state, elements nobody holds keep their bits."""
    result = state.flat.clone()
    total = torch.zeros(layout.size, dtype=torch.float64, device=result.device)
    for cohort in sums:
        assert cohort.flat_mean is not None
        blend_into(result, total, cohort.flat_mean, Positions(cohort.positions), partial(_add_weight, cohort))
    others = dict(state.others)
    for name in others.keys() & {name for cohort in sums for name in cohort.others}:
        others[name] = average_tensor(others[name], name, sums, layout.plan)
    return FlatState(result, layout, others)


@dataclass(frozen=True)
class Positions:
    """Elements of a vector by their positions, which differ: one dimension of them, or several."""

    positions: Tensor

    def take(self, full: Tensor) -> Tensor:
        """A copy of the elements at these positions."""
        return full.index_select(0, self.positions.view(-1)).view(self.positions.shape)

    def put(self, full: Tensor, part: Tensor) -> None:
        """Write the elements at these positions."""
        full.scatter_(0, self.positions.view(-1), part.view(-1))


def _add_weight(cohort: FlatSum, after: Tensor) -> Weight:
    """Add a cohort's weight to that of all cohorts before, in each of its elements, and return its share of the sum."""
    if cohort.label_weight is None:
        after += cohort.flat_weight
        return ratio(cohort.flat_weight, after)
    labelled = cohort.sub.take_labelled(after).add_(cohort.label_weight)
    after += cohort.flat_weight
    cohort.sub.put_labelled(after, labelled)
    labelled_share = ratio(cohort.label_weight, labelled)
    del labelled  # in a language model nearly all elements: no more than needed at a time
    share = ratio(cohort.flat_weight, after)
    assert isinstance(share, Tensor)
    assert isinstance(labelled_share, Tensor)
    cohort.sub.put_labelled(share, labelled_share)
    return share


def check_finite(vectors: Sequence[Tensor], subs: Sequence[TensorLayout], clients: Sequence[int]) -> None:
    """Refuse vectors with values that are not finite, naming client and tensor; the device is asked once for all."""
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


def check_rows(rows: Tensor, sub: TensorLayout, tasks: Sequence[Task], round: int | None = None) -> None:
    """Refuse rows of a matrix with values that are not finite, naming client, tensor and, where it is given, round."""
    if not bool(torch.isfinite(rows.sum(1)).all()):
        for row, task in zip(rows, tasks, strict=True):
            with error_context("add", round, task) if round is not None else nullcontext():
                check_finite([row], [sub], [task.client])
