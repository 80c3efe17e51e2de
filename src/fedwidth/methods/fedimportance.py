"""FedImportance: a client trains the units whose weights are largest, in the global model as the round begins.

A unit's score is the mean size of all weights that belong to it, those that lead into it and those that lead out. It
is FIARSE's idea (Wu et al. 2024) for whole units: FIARSE masks single weights, which saves a device no memory and no
time without sparse kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedwidth.core.submodel import State
from fedwidth.methods.definition import ROUNDING, Method, Moment, per_group
from fedwidth.plan.axis import owners
from fedwidth.plan.plan import Plan


def units(size: int, kept: int, at: Moment) -> Tensor:
    """The units with the largest scores; of equal ones the first."""
    del size
    assert at.plan is not None
    assert at.state is not None
    order = scores(at.plan, at.group, at.state).sort(descending=True, stable=True).indices
    return order[:kept].sort().values


def scores(plan: Plan, group: str, state: State) -> Tensor:
    """The mean size of the weights of each unit of a width group, in double precision."""
    sizes = torch.zeros(plan.groups[group].size, dtype=torch.float64)
    weights = torch.zeros_like(sizes)
    for name, dim in plan.groups[group].members:
        if name not in plan.parameters or name in plan.tied:
            continue
        others = [other for other in range(state[name].dim()) if other != dim]
        found = state[name].detach().abs().double()
        by_position = (found.sum(others) if others else found).cpu()
        owner = owners(plan.axes[name][dim], group)
        theirs = owner >= 0
        sizes.index_add_(0, owner[theirs], by_position[theirs])
        each = found.numel() // len(owner)
        weights.index_add_(0, owner[theirs], torch.full((int(theirs.sum()),), float(each), dtype=torch.float64))
    return sizes / weights.clamp(min=1)


METHOD = Method(
    name="fedimportance",
    title="FedImportance",
    paper="after Wu et al. 2024",
    equation="docs/methods/fedimportance.md",
    choose=per_group(units),
    options={"rounding": ROUNDING},
    reads=("state",),
    shared=lambda _: True,
    nested=lambda _: True,
)
