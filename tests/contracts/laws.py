"""The laws that methods keep on models, and which of them a method does not keep, with the reason.

A law is a function of a method and a model of `contract_models`; it fails by an assertion. `docs/how-it-works.md` says
why each matters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from contract_models import traced
from torch import Tensor

import fedwidth
from fedwidth.core.cohort import sum_cohorts
from fedwidth.methods import Beginning, Method
from fedwidth.plan import Plan
from fedwidth.plan.trace import tensors_of
from zoo import run

CAPACITIES = (1.0, 0.5, 0.25, 0.125, 1 / 16)


def narrows(method: Method) -> bool:
    """Whether sub-models are as narrow as their device asks: such methods let the user say how units are rounded."""
    return "rounding" in method.options


def held_by_server(method: Method, plan: Plan, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """What a choice may look at before the first round: the state, and what the method remembers."""
    beginning = Beginning(state, plan, enrolled=CAPACITIES, options=method.with_options().values)
    return {"state": state, "memory": method.first_memory(beginning)}


def indexes_are_in_range_distinct_sorted_and_of_the_planned_size(method: Method, name: str) -> None:
    _, plan, _, state = traced(name)
    for rounding in ("floor", "ceil"):
        rounded = method.with_options(rounding=rounding) if narrows(method) else method
        for capacity in (1.0, 0.5, 1 / 16):
            wanted = plan.narrow_shapes(plan.counts(capacity if narrows(method) else 1.0, rounding))
            for round in (0, 7, 1000):
                index = rounded.select(plan, capacity=capacity, round=round, client=1, clients=3, seed=5, state=state)
                for tensor, dims in index.items():
                    assert tuple(len(kept) for kept in dims) == wanted[tensor]
                    for kept, size in zip(dims, plan.shapes[tensor], strict=True):
                        assert kept.dtype == torch.long
                        assert len(kept) == 0 or 0 <= int(kept[0]) <= int(kept[-1]) < size
                        assert bool((kept[1:] > kept[:-1]).all())


def full_capacity_is_fedavg_bit_for_bit(method: Method, name: str) -> None:
    model, plan, inputs, state = traced(name)
    outcomes = []
    for each in (fedwidth.method("fedavg"), method):
        noise = torch.Generator().manual_seed(0)
        tasks = each.assign(plan, [(c, 1.0) for c in range(3)], round=4, seed=1, state=state)
        updates = []
        for task in tasks:
            sub = fedwidth.extract(state, plan, task.index)
            assert all(torch.equal(sub[n], state[n]) for n in state)
            for n in sub:
                if n not in plan.tied and sub[n].is_floating_point():
                    sub[n] += torch.randn(sub[n].shape, generator=noise)
            updates.append(fedwidth.Update(sub, task.index, weight=1.0 + task.client))
        outcomes.append(each.aggregate(state, sum_cohorts(updates, plan), plan))
    assert all(torch.equal(outcomes[0][n], outcomes[1][n]) for n in state)
    small = fedwidth.narrow(model, plan, method.select(plan, capacity=1, round=3, state=state))
    with torch.no_grad():
        assert torch.equal(run(small.eval(), inputs), run(model.eval(), inputs))


def training_that_changes_nothing_changes_nothing(method: Method, name: str) -> None:
    _, plan, _, state = traced(name)
    tasks = method.assign(plan, list(enumerate((*CAPACITIES, 0.5))), round=3, seed=2, state=state)
    updates = [fedwidth.Update(fedwidth.extract(state, plan, t.index), t.index, weight=0.1 + t.client) for t in tasks]
    new = method.aggregate(state, sum_cohorts(updates, plan), plan)
    assert all(torch.equal(new[n], state[n]) for n in state)


def elements_nobody_trained_keep_their_bits(method: Method, name: str) -> None:
    _, plan, _, state = traced(name)
    tasks = method.assign(plan, list(enumerate((0.25, 0.125))), round=5, seed=2, state=state)
    updates = []
    for task in tasks:
        sub = {n: t + 1 for n, t in fedwidth.extract(state, plan, task.index).items()}
        updates.append((sub, task.index, 1.0))
    new = method.aggregate(state, sum_cohorts(updates, plan), plan)
    for n, tensor in state.items():
        held = torch.zeros(tensor.shape, dtype=torch.bool)
        for task in tasks:
            held[torch.meshgrid(*task.index[n], indexing="ij") if tensor.dim() else ()] = True
        assert torch.equal(new[n][~held], tensor[~held])
        assert bool((new[n][held] != tensor[held]).all())


def sub_models_run_and_train(method: Method, name: str) -> None:
    model, plan, inputs, state = traced(name)
    part = method.select(plan, capacity=0.5, round=2, client=1, clients=2, **held_by_server(method, plan, state))
    small, sub = part.module(model, plan), part.cut(state, plan)
    with torch.no_grad():
        for n, tensor in tensors_of(small)[0].items():
            tensor.copy_(sub[n])
    run(small.train(), inputs).square().mean().backward()
    trained = [p for p in small.parameters() if p.requires_grad]
    grads = [p.grad for p in trained if p.grad is not None]
    assert len(grads) > 0.8 * len(trained)  # some models hold weights they do not use
    assert all(g.isfinite().all() for g in grads)


Law = Callable[[Method, str], None]

INDEX_LAWS: tuple[Law, ...] = (
    indexes_are_in_range_distinct_sorted_and_of_the_planned_size,
    full_capacity_is_fedavg_bit_for_bit,
    training_that_changes_nothing_changes_nothing,
    elements_nobody_trained_keep_their_bits,
)
"""Laws of methods whose sub-models are slices of the model (`Method.slices`)."""

LAWS: tuple[Law, ...] = (*INDEX_LAWS, sub_models_run_and_train)


@dataclass(frozen=True)
class Exemption:
    """Why a method does not keep a law, and the options with which it does, where there are some."""

    reason: str
    options: Mapping[str, Any] = field(default_factory=dict)


TAUGHT = Exemption("the average is taught on data of the server's own, which these laws have not", {"steps": 0})

EXEMPT: dict[tuple[str, Law], Exemption] = {
    ("fedbe", full_capacity_is_fedavg_bit_for_bit): TAUGHT,
    ("fedbe", training_that_changes_nothing_changes_nothing): TAUGHT,
    ("fedbe", elements_nobody_trained_keep_their_bits): TAUGHT,
    ("fedbrb", elements_nobody_trained_keep_their_bits): Exemption(
        "what a block learnt is broadcast to the blocks that nobody trained", {"broadcast": 0}
    ),
}
"""By method and law. An entry that is not needed fails the contract."""


def laws_of(method: Method) -> list[Law]:
    """The laws that a method is held to."""
    return [law for law in LAWS if method.slices or law not in INDEX_LAWS]
