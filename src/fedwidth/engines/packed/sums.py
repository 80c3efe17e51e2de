"""Averaging many runs at once: the arithmetic of `flat_sums`, element by element the same, for all runs together.

A client's weight is one number, or one for each class where rows of the classifier are averaged over the clients that
have the label: a row of a small table in either case. Sums of weights are made on those tables, in double precision
and in task order as for one run alone; only the interpolation of the vectors happens on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from fedwidth.core.aggregation import RoundSums, add_share, blend_into
from fedwidth.core.running_mean import Weight, ratio
from fedwidth.engines.flat.layout import FlatState, SubLayout
from fedwidth.engines.flat.sums import FlatSum, Positions, average_flat
from fedwidth.methods import Task
from fedwidth.training.client import Trainer, weigh_client


@dataclass(frozen=True)
class Members:
    """Trained clients of one size: row i is a sub-model of run `run[i]`, at the positions `where[which[i]]`."""

    sub: SubLayout
    rows: Tensor
    where: Tensor
    which: Tensor
    run: Tensor
    labels: Tensor | None
    """The class each element of a row belongs to, where that matters."""
    tasks: list[tuple[int, int, Task, int]]
    """(run, place among its tasks, task, steps) of each row."""


@dataclass
class _Cohort:
    """Clients of one run with one index, in task order."""

    number: int
    """Its number in the run, in order of first appearance."""
    group: int
    rows: list[int]
    total: Weight
    """Weight of the clients so far: a number, or a table with one for each class and one for what belongs to none."""
    shares: list[Weight]
    """Of the second client and later ones, each among those up to it."""


class PackedSums(RoundSums):
    """The sums of one run of a pack: averaged with those of all others, and made one by one only if asked for."""

    def __init__(
        self, state: FlatState, new: FlatState, cohorts: Sequence[_Cohort], members: Sequence[Members]
    ) -> None:
        self._state, self._new, self._cohorts, self._members = state, new, cohorts, members

    @cached_property
    def _sums(self) -> list[FlatSum]:
        return [_sum_of(cohort, self._members[cohort.group]) for cohort in self._cohorts]

    def __getitem__(self, number: Any) -> Any:
        return self._sums[number]

    def __len__(self) -> int:
        return len(self._cohorts)

    def average(self, state: Mapping[str, Tensor]) -> FlatState:
        """The new state."""
        layout = self._members[0].sub.layout
        return self._new if state is self._state else average_flat(layout.flatten(state), self._sums, layout)


def average_runs(
    states: Sequence[FlatState], flats: Tensor, members: Sequence[Members], trainers: Sequence[Trainer]
) -> list[PackedSums]:
    """The sums of every run, averaged (Eq. 10); the old states, `flats`, are used up."""
    cohorts = _cohorts(members, trainers)
    for group, member in enumerate(members):
        _blend(member, [cohort for own in cohorts for cohort in own if cohort.group == group])
    total = torch.zeros_like(flats, dtype=torch.float64)
    for number in range(max(len(own) for own in cohorts)):
        here = [own[number] for own in cohorts if number < len(own)]
        for group, member in enumerate(members):
            _put(flats, total, member, [cohort for cohort in here if cohort.group == group])
    layout = members[0].sub.layout
    return [
        PackedSums(state, FlatState(flats[run], layout, state.others), cohorts[run], members)
        for run, state in enumerate(states)
    ]


def _cohorts(members: Sequence[Members], trainers: Sequence[Trainer]) -> list[list[_Cohort]]:
    """The cohorts of every run, with their weights."""
    rows = [
        (run, place, group, row, task, steps)
        for group, member in enumerate(members)
        for row, (run, place, task, steps) in enumerate(member.tasks)
    ]
    found: list[dict[str, _Cohort]] = [{} for _ in trainers]
    for run, _, group, row, task, steps in sorted(rows, key=lambda entry: entry[:2]):
        weight = _weight(trainers[run], task, steps, labelled=members[group].labels is not None)
        cohort = found[run].get(task.cohort)
        if cohort is None:
            found[run][task.cohort] = _Cohort(len(found[run]), group, [row], weight, [])
            continue
        cohort.total = cohort.total + weight
        cohort.shares.append(ratio(weight, cohort.total))
        cohort.rows.append(row)
    return [list(own.values()) for own in found]


def _weight(trainer: Trainer, task: Task, steps: int, *, labelled: bool) -> Weight:
    """What a client weighs: a number, or where classes count a table of them."""
    weight, labels = weigh_client(trainer, task, steps)
    if not labelled:
        return weight
    classes = trainer.data.classes
    table = torch.full((classes + 1,), weight, dtype=torch.float64)
    if labels is not None:
        table[:classes] = 0.0
        table[labels] = weight
    return table


def _blend(member: Members, cohorts: Sequence[_Cohort]) -> None:
    """Make the first row of every cohort its mean: second clients of all cohorts at once, then third ones."""
    for place in range(1, max((len(cohort.rows) for cohort in cohorts), default=0)):
        here = [cohort for cohort in cohorts if place < len(cohort.rows)]
        mean = member.rows[_at(member, [cohort.rows[0] for cohort in here])]
        shares = _spread(member, [cohort.shares[place - 1] for cohort in here]).to(mean.dtype)
        mean.lerp_(member.rows[_at(member, [cohort.rows[place] for cohort in here])], shares)
        member.rows[_at(member, [cohort.rows[0] for cohort in here])] = mean


def _put(flats: Tensor, total: Tensor, member: Members, cohorts: Sequence[_Cohort]) -> None:
    """Average one cohort of each of several runs into their states; `total` is the weight each element has so far."""
    if not cohorts:
        return
    rows = _at(member, [cohort.rows[0] for cohort in cohorts])
    positions = member.where[member.which[rows]] + member.run[rows, None] * flats.shape[1]
    weights = _spread(member, [cohort.total for cohort in cohorts])
    add = partial(add_share, weight=weights)
    blend_into(flats.view(-1), total.view(-1), member.rows[rows], Positions(positions), add)


def _sum_of(cohort: _Cohort, member: Members) -> FlatSum:
    """The sum of one cohort by itself, for methods that look at it."""
    row = cohort.rows[0]
    one = FlatSum(member.tasks[row][2].index, member.sub, member.where[member.which[row]])
    one.flat_mean, one.clients = member.rows[row], len(cohort.rows)
    if isinstance(cohort.total, Tensor):
        one.flat_weight = float(cohort.total[-1])
        one.label_weight = cohort.total.to(member.rows.device)[member.sub.classes]
    else:
        one.flat_weight = cohort.total
    return one


def _at(member: Members, rows: list[int]) -> Tensor:
    return torch.tensor(rows, device=member.rows.device)


def _spread(member: Members, weights: Sequence[Weight]) -> Tensor:
    """Weights by row: [rows, 1], or [rows, n] where they differ by class."""
    device = member.rows.device
    if member.labels is None:
        return torch.tensor(weights, dtype=torch.float64, device=device)[:, None]
    return torch.stack([torch.as_tensor(weight) for weight in weights]).to(device)[:, member.labels]
