"""What a method is: a small frozen bundle of functions, and the options they take.

A new method is a new file in this folder with one function and one record. The whole of HeteroFL is:

    def units(size: int, kept: int, at: Moment) -> Tensor:
        return prefix(size, kept)

    METHOD = Method("heterofl", …, choose=per_group(units))

`select` is a pure function of (plan, capacity, round, client, clients, seed, history): the same arguments give the same
index, on every machine and after every resume.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwidth.aggregation import CohortSum, finalise
from fedwidth.errors import OptionError, SelectionError, unknown, whole_number
from fedwidth.index import Index
from fedwidth.methods.options import Option
from fedwidth.plan.plan import Plan, check_plan
from fedwidth.plan.units import check_capacity
from fedwidth.randomness import numpy_generator
from fedwidth.submodel import State, check_index


@dataclass(frozen=True)
class History:
    """How many clients of the previous round held each unit; None before the first round."""

    seen: Mapping[str, Tensor]
    clients: int

    def __post_init__(self) -> None:
        for name, seen in self.seen.items():
            if not bool(((seen >= 0) & (seen <= self.clients)).all()):
                raise SelectionError(f"a history of {self.clients} clients cannot count {seen.tolist()} for '{name}'")

    @classmethod
    def of(cls, plan: Plan, indexes: Sequence[Index]) -> History:
        """The history one round leaves behind."""
        seen = {name: torch.zeros(group.size, dtype=torch.long) for name, group in plan.groups.items()}
        for index in indexes:
            check_index(plan, index)
            for name, units in (index.units or {}).items():
                seen[name][units] += 1
        return cls(seen, len(indexes))


@dataclass(frozen=True)
class Moment:
    """Everything a selection may depend on besides the plan."""

    capacity: float | Fraction
    round: int
    client: int
    """The client's place in the round's cohort, 0 … clients-1."""
    clients: int
    seed: int
    history: History | None
    options: Mapping[str, Any]
    group: str = ""
    """The width group in question (set by `per_group`)."""
    number: int = 0
    """Its number in the plan."""

    def generator(self) -> np.random.Generator:
        """Randomness of this client, round and group alone."""
        return numpy_generator(self.seed, "select", self.round, self.client, self.number)


Choose = Callable[[Plan, Mapping[str, int], Moment], Index]
Units = Callable[[int, int, Moment], Tensor]
Aggregate = Callable[[State, Sequence[CohortSum], Plan, Mapping[str, Any]], dict[str, Tensor]]


def per_group(units: Units) -> Choose:
    """A choice that keeps the same units for a whole width group: `units(size, kept, moment)` for each."""

    def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> Index:
        chosen = {}
        for number, (name, group) in enumerate(plan.groups.items()):
            here = replace(at, group=name, number=number)
            chosen[name] = (
                torch.arange(group.size) if counts[name] == group.size else units(group.size, counts[name], here)
            )
        return Index.of_units(plan, chosen)

    return choose


def average(state: State, sums: Sequence[CohortSum], plan: Plan, options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Eq. 10, what all methods but FedBRB do."""
    del options
    return finalise(state, sums, plan)


@dataclass(frozen=True)
class Task:
    """One client's work in one round."""

    client: int
    capacity: float
    index: Index
    place: int
    """The client's place in the cohort."""


@dataclass(frozen=True)
class Method:
    """A partial-training method: which units clients keep, and how their updates become the new state."""

    name: str
    title: str
    paper: str
    equation: str
    choose: Choose
    options: Mapping[str, Option] = field(default_factory=dict)
    aggregate_with: Aggregate = average
    shared: Callable[[Mapping[str, Any]], bool] = lambda _: False
    """True for options with which all clients of one capacity hold the same window in a round."""
    local_widths: Callable[[float, Mapping[str, Any]], Sequence[float]] | None = None
    """The widths a client of this capacity draws from at each local step (FjORD); None: always its own."""
    remembers: bool = False
    """True where a round's choice depends on which units the previous round trained."""
    values: Mapping[str, Any] = field(default_factory=dict)

    def with_options(self, /, **given: Any) -> Method:
        """This method with options set; unknown names and values are refused."""
        given = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
        for name, value in given.items():
            if name not in self.options:
                raise unknown(f"option of {self.name}", name, self.options)
            option = self.options[name]
            if not option.accepts(value):
                raise OptionError(f"{self.name} option {name} must be {option.allowed}, not {value!r}")
        defaults = {name: option.default for name, option in self.options.items()}
        return replace(self, values={**defaults, **self.values, **given})

    def select(
        self,
        plan: Plan,
        *,
        capacity: float | Fraction,
        round: int = 0,
        client: int = 0,
        clients: int = 1,
        seed: int = 0,
        history: History | None = None,
    ) -> Index:
        """The index of one client: `client` is its place among the `clients` of this round."""
        check_plan(plan)
        if history is not None and not isinstance(history, History):
            raise OptionError(f"history must be a History or None, not a {type(history).__name__}")
        moment = Moment(
            capacity=capacity,
            round=whole_number("round", round),
            client=whole_number("client", client),
            clients=whole_number("clients", clients, least=1),
            seed=whole_number("seed", seed),
            history=history,
            options=self.values,
        )
        if moment.client >= moment.clients:
            raise OptionError(f"client {client} is not one of {clients} clients, counted from 0")
        return self.choose(plan, plan.counts(capacity, self.values.get("rounding", "floor")), moment)

    def assign(
        self,
        plan: Plan,
        cohort: Sequence[tuple[int, float]],
        round: int,
        history: History | None = None,
        seed: int = 0,
    ) -> list[Task]:
        """A task for every (client, capacity) of the round, in cohort order; equal indexes are one object."""
        check_plan(plan)
        shared, cohort = self.shared(self.values), _checked_cohort(cohort)
        by_capacity: dict[float, Index] = {}
        by_key: dict[str, Index] = {}
        tasks = []
        for place, (client, capacity) in enumerate(cohort):
            index = by_capacity.get(capacity) if shared else None
            if index is None:
                found = self.select(
                    plan,
                    capacity=capacity,
                    round=round,
                    client=place,
                    clients=len(cohort),
                    seed=seed,
                    history=history,
                )
                index = by_capacity[capacity] = by_key.setdefault(found.key, found)
            # A sub-model that holds everything is a full-width one, whatever the device could afford (FedAvg).
            tasks.append(Task(client, 1.0 if index.is_whole else capacity, index, place))
        return tasks

    def aggregate(self, state: State, sums: Sequence[CohortSum], plan: Plan) -> dict[str, Tensor]:
        """The new global state from the cohorts' sums."""
        return self.aggregate_with(state, sums, plan, self.values)


def _checked_cohort(cohort: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    try:
        pairs = [(client, capacity) for client, capacity in cohort]
    except (TypeError, ValueError):
        raise OptionError(f"the cohort must be a list of (client, capacity) pairs, not {cohort!r}") from None
    for _, capacity in pairs:
        check_capacity(capacity)
    return pairs
