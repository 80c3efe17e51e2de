"""No update counts for more than a multiple of what is usual in its round, and none that points away from the others.

A client m that was sent the part theta[I_m] of the state and trained it to theta_m has made the change

    d_m = theta_m - theta[I_m],    n_m = |d_m|,    b = multiple * (lower median of all n_m of the round)

and what counts of it is theta[I_m] + d_m * min(1, b / n_m). An update within the bound b keeps its bits.

Norms are compared as they are, whatever the width: a client's change is about as long as its steps, and those do not
grow with the number of elements (with the digits of the quick start 0.77 to 0.99 at five widths in the first round,
while root mean squares differ by a factor of 12). The median is that of the round because changes become shorter as
training goes on, and the lower one because of two clients one may be hostile.

Parameters, other tensors (running statistics) and everything reported beside them are bounded each by their own
median: they are of different sizes.

Screening asks for the cosine of a client's change with what the others did, s_m = sum over j != m of d_j / n_j, on the
elements that the client holds (0 where nobody else holds them). A client for which it is below 0 is left out of the
round, as if it had not answered; of n clients at most (n - 1) / 2, those with the lowest, and none of fewer than six:
clients whose data differ do not point the same way, and who of a few is right nobody can say. A bound alone does not
keep out a client that goes backwards at the bound, least of all where it alone holds an element; that it goes backwards
shows on those it shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

import torch
from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.core.submodel import State, put, take
from fedwidth.methods import Task
from fedwidth.plan.plan import Plan

FAR = 5.0
"""An update this many times as long as the bound is no accident: honest ones were seen at up to 1.8 times."""
MIN_SCREENED = 6
"""Clients in a round from which on those that point away from the others are left out."""
MAX_EXCESS = 1e6
"""What is counted as the excess of an update in a round whose median is 0."""


@dataclass(frozen=True)
class Clipped:
    """The updates of a round, none of them too large."""

    sums: list[CohortSum]
    """The sum of each client alone, in the order of the tasks."""
    excess: tuple[float, ...]
    """How many times as long as the bound each update was: above 1 it was clipped."""
    opposed: Mapping[int, float]
    """The cosines of updates that point away from the others, by number of the task: always less than half of all."""


def clip_updates(
    state: State,
    sums: Sequence[CohortSum],
    tasks: Sequence[Task],
    plan: Plan,
    multiple: float,
    *,
    screen: bool = False,
) -> Clipped:
    """Clip the updates of single clients, given in the order of their tasks; with `screen`, say which point away."""
    changes: list[dict[str, dict[str, Tensor]]] = []
    for total, task in zip(sums, tasks, strict=True):
        sent = task.part.cut(state, plan)
        changes.append(_changes(total, sent, plan))
    factors = [dict[str, float]() for _ in tasks]
    excess = [0.0] * len(tasks)
    for kind in dict.fromkeys(kind for change in changes for kind in change):
        norms = [norm(change[kind]) if kind in change else 0.0 for change in changes]
        bound = multiple * median_low(norms)
        for number, own in enumerate(norms):
            if own > bound:
                factors[number][kind] = bound / own
                excess[number] = max(excess[number], min(own / bound, MAX_EXCESS) if bound else MAX_EXCESS)
            elif bound:
                excess[number] = max(excess[number], own / bound)
    opposed: dict[int, float] = {}
    if screen and len(tasks) >= MIN_SCREENED:
        found = cosines([change.get(PARAMETERS, {}) for change in changes], tasks, state)
        worst = sorted(range(len(found)), key=found.__getitem__)[: (len(found) - 1) // 2]
        opposed = {number: found[number] for number in worst if found[number] < 0}
    clipped = [
        _scaled(total, change, factor) if factor else total
        for total, change, factor in zip(sums, changes, factors, strict=True)
    ]
    return Clipped(clipped, tuple(excess), opposed)


def cosines(changes: Sequence[Mapping[str, Tensor]], tasks: Sequence[Task], state: State) -> list[float]:
    """The cosine of each client's change with the sum of the others', all made equally long, where the client holds."""
    total = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in state.items()}
    units = []
    for change, task in zip(changes, tasks, strict=True):
        length = norm(change) or 1.0
        units.append({name: own.double() / length for name, own in change.items()})
        for name, own in units[-1].items():
            put(total[name], take(total[name], task.index, name) + own, task.index, name)
    found = []
    for unit, task in zip(units, tasks, strict=True):
        others = {name: take(total[name], task.index, name) - own for name, own in unit.items()}
        product = sum(float((own * others[name]).sum()) for name, own in unit.items())
        lengths = norm(unit) * norm(others)
        found.append(product / lengths if lengths else 0.0)
    return found


def merged(sums: Sequence[CohortSum], tasks: Sequence[Task]) -> list[CohortSum]:
    """The sums of clients that hold the same part, added in the order of tasks: those of a round without clipping."""
    found: dict[str, CohortSum] = {}
    for total, task in zip(sums, tasks, strict=True):
        found.setdefault(task.part.key, CohortSum(total.index)).merge(total)
    return list(found.values())


def norm(tensors: Mapping[str, Tensor]) -> float:
    """The Euclidean norm of all elements together, in double precision.

    >>> norm({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])})
    5.0
    """
    squares = [tensor.abs().double().square().sum() for tensor in tensors.values()]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


PARAMETERS, OTHERS = "parameters", "others"


def _changes(total: CohortSum, sent: State, plan: Plan) -> dict[str, dict[str, Tensor]]:
    """What one client changed, by kind and tensor; a report is a change by itself."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, mean in total.mean.items():
        kind = PARAMETERS if name in plan.parameters else OTHERS
        found.setdefault(kind, {})[name] = mean - sent[name].to(mean.dtype)
    return found | {f"report {name}": dict(own.mean) for name, own in total.reports.items()}


def _scaled(total: CohortSum, change: Mapping[str, Mapping[str, Tensor]], factors: Mapping[str, float]) -> CohortSum:
    """The sum of one client with its changes made smaller."""
    mean = dict(total.mean)
    for kind in (kind for kind in factors if kind in (PARAMETERS, OTHERS)):
        mean |= {name: mean[name] - own * (1 - factors[kind]) for name, own in change[kind].items()}
    made = CohortSum.of(total.index, mean, total.weight, total.clients)
    made.reports = dict(total.reports)
    for name, own in total.reports.items():
        if (factor := factors.get(f"report {name}")) is not None:
            smaller = {tensor: value * factor for tensor, value in own.mean.items()}
            made.reports[name] = CohortSum.of(own.index, smaller, own.weight, own.clients)
    return made
