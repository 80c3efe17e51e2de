"""Averaging many runs at once: element by element the arithmetic of `flat.sums`, for all runs together.

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
from fedwidth.core.running_mean import Weight, interpolate, ratio
from fedwidth.engines.flat.layout import FlatState, SubLayout, copy_to_device
from fedwidth.engines.flat.sums import FlatSum, Positions, average_flat
from fedwidth.engines.packed.clients import PackedClient
from fedwidth.methods import Task
from fedwidth.training.client import Trainer, weigh_client


@dataclass(frozen=True)
class StackedUpdates:
    """Sub-models of one size, of clients of several runs: row i is that of `clients[i]`.

    It lies in the state of run `runs[i]` at the positions `positions[which[i]]`: clients with one index share them.
    """

    sub: SubLayout
    rows: Tensor
    positions: Tensor
    which: Tensor
    runs: Tensor
    labels: Tensor | None
    """The class each element of a row belongs to, where that matters."""
    clients: Sequence[PackedClient]


@dataclass
class _Cohort:
    """Clients of one run with one index, in task order."""

    number: int
    """Its number in the run, in order of first appearance."""
    stack: int
    """The number of the stacked updates its clients are in."""
    rows: list[int]
    """The clients' rows there."""
    total: Weight
    """Weight of the clients so far: a number, or a table with one for each class and one for what belongs to none."""
    shares: list[Weight]
    """The share of the second client and each later one in the weight of the clients up to it."""


class PackedSums(RoundSums):
    """The sums of one run, averaged together with those of all other runs, and made one by one only if asked for."""

    def __init__(
        self, state: FlatState, new: FlatState, cohorts: Sequence[_Cohort], stacks: Sequence[StackedUpdates]
    ) -> None:
        self._state, self._new, self._cohorts, self._stacks = state, new, cohorts, stacks

    @cached_property
    def _sums(self) -> list[FlatSum]:
        return [_sum_of(cohort, self._stacks[cohort.stack]) for cohort in self._cohorts]

    def __getitem__(self, number: Any) -> Any:
        return self._sums[number]

    def __len__(self) -> int:
        return len(self._cohorts)

    def average(self, state: Mapping[str, Tensor]) -> FlatState:
        """The state after the sums were averaged into it."""
        layout = self._stacks[0].sub.layout
        return self._new if state is self._state else average_flat(layout.flatten(state), self._sums, layout)


def average_runs(
    states: Sequence[FlatState], flats: Tensor, stacks: Sequence[StackedUpdates], trainers: Sequence[Trainer]
) -> list[PackedSums]:
    """The sums of every run, averaged (Eq. 10); the old states, `flats`, are overwritten."""
    cohorts = _cohorts(stacks, trainers)
    for number, stack in enumerate(stacks):
        _blend(stack, [cohort for own in cohorts for cohort in own if cohort.stack == number])
    total = torch.zeros_like(flats, dtype=torch.float64)
    for nth in range(max(len(own) for own in cohorts)):
        here = [own[nth] for own in cohorts if nth < len(own)]
        for number, stack in enumerate(stacks):
            _average_into(flats, total, stack, [cohort for cohort in here if cohort.stack == number])
    layout = stacks[0].sub.layout
    return [
        PackedSums(state, FlatState(flats[run], layout, state.others), cohorts[run], stacks)
        for run, state in enumerate(states)
    ]


def _cohorts(stacks: Sequence[StackedUpdates], trainers: Sequence[Trainer]) -> list[list[_Cohort]]:
    """The cohorts of every run, with their weights."""
    rows = [(client, number, row) for number, stack in enumerate(stacks) for row, client in enumerate(stack.clients)]
    found: list[dict[tuple[str, int], _Cohort]] = [{} for _ in trainers]
    for client, number, row in sorted(rows, key=lambda entry: (entry[0].run, entry[0].position)):
        # Clients of different capacities may hold the same part: then they are in different stacks.
        own, key = found[client.run], (client.task.cohort, number)
        labelled = stacks[number].labels is not None
        weight = _weight(trainers[client.run], client.task, client.steps, labelled=labelled)
        if key not in own:
            own[key] = _Cohort(len(own), number, [row], weight, [])
            continue
        cohort = own[key]
        cohort.total = cohort.total + weight
        cohort.shares.append(ratio(weight, cohort.total))
        cohort.rows.append(row)
    return [list(own.values()) for own in found]


def _weight(trainer: Trainer, task: Task, steps: int, *, labelled: bool) -> Weight:
    """The weight of a client: a number, or where classes count a table with one for each class and one for the rest."""
    weight, labels = weigh_client(trainer, task, steps)
    if not labelled:
        return weight
    classes = trainer.data.classes
    table = torch.full((classes + 1,), weight, dtype=torch.float64)
    if labels is not None:
        table[:classes] = 0.0
        table[labels] = weight
    return table


def _blend(stack: StackedUpdates, cohorts: Sequence[_Cohort]) -> None:
    """Make the first row of every cohort its mean: second clients of all cohorts at once, then third ones."""
    for nth in range(1, max((len(cohort.rows) for cohort in cohorts), default=0)):
        here = [cohort for cohort in cohorts if nth < len(cohort.rows)]
        first, others = _row_numbers(stack, [[cohort.rows[0], cohort.rows[nth]] for cohort in here]).unbind(1)
        mean = stack.rows.index_select(0, first)
        shares = _weights_by_row(stack, [cohort.shares[nth - 1] for cohort in here])
        interpolate(mean, stack.rows.index_select(0, others), shares)
        stack.rows.index_copy_(0, first, mean)


def _average_into(flats: Tensor, total: Tensor, stack: StackedUpdates, cohorts: Sequence[_Cohort]) -> None:
    """Average one cohort of each of several runs into their states; `total` is the weight each element has so far."""
    if not cohorts:
        return
    rows = _row_numbers(stack, [cohort.rows[0] for cohort in cohorts])
    which, runs = stack.which.index_select(0, rows), stack.runs.index_select(0, rows)
    positions = stack.positions.index_select(0, which) + runs[:, None] * flats.shape[1]
    weights = _weights_by_row(stack, [cohort.total for cohort in cohorts])
    add = partial(add_share, weight=weights)
    blend_into(flats.view(-1), total.view(-1), stack.rows.index_select(0, rows), Positions(positions), add)


def _sum_of(cohort: _Cohort, stack: StackedUpdates) -> FlatSum:
    """The sum of one cohort by itself, for methods that look at it."""
    row = cohort.rows[0]
    one = FlatSum(stack.clients[row].task.index, stack.sub, stack.positions[stack.which[row]])
    one.flat_mean, one.clients = stack.rows[row], len(cohort.rows)
    if isinstance(cohort.total, Tensor):
        one.flat_weight = float(cohort.total[-1])
        one.label_weight = cohort.total.to(stack.rows.device)[stack.sub.classes]
    else:
        one.flat_weight = cohort.total
    return one


def _row_numbers(stack: StackedUpdates, rows: Sequence[int | Sequence[int]]) -> Tensor:
    """Numbers of rows as a tensor on the device."""
    return copy_to_device(torch.tensor(rows), stack.rows.device)


def _weights_by_row(stack: StackedUpdates, weights: Sequence[Weight]) -> Tensor:
    """The weights of several rows: [rows, 1], or [rows, n] where they differ by class."""
    device = stack.rows.device
    if stack.labels is None:
        return copy_to_device(torch.tensor(weights, dtype=torch.float64), device)[:, None]
    tables = copy_to_device(torch.stack([torch.as_tensor(weight) for weight in weights]), device)
    return tables.index_select(1, stack.labels)
