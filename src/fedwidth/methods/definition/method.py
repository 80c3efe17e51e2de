"""What a method is: a small frozen bundle of functions, and the options they take.

A new method is one function and one record, in a file anywhere. The whole of HeteroFL is:

    def units(size: int, kept: int, at: Moment) -> Tensor:
        return prefix(size, kept)

    METHOD = Method("heterofl", …, choose=per_group(units))

Everything else a method may do is optional: change how clients train (`local`), remember (`init`, `advance`), change
the first state (`start`), and close a round otherwise than by averaging (`close`).

`select` is a pure function of its arguments: the same ones give the same part, on every machine and after every resume.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwidth.core.aggregation import CohortSum
from fedwidth.core.index import Index
from fedwidth.core.submodel import State
from fedwidth.errors import FedwidthError, OptionError, unknown, whole_number
from fedwidth.methods.closing import Beginning, Closing
from fedwidth.methods.local import Local, Memory, Sending
from fedwidth.methods.options import Option
from fedwidth.methods.task import Task
from fedwidth.plan.plan import Plan, check_plan
from fedwidth.plan.units import check_capacity
from fedwidth.randomness import numpy_generator

Cohort = Sequence[tuple[int, float]]
"""The clients of a round: (client, capacity)."""


@dataclass(frozen=True)
class Moment:
    """Everything a selection may depend on besides the plan."""

    capacity: float | Fraction
    round: int
    client: int
    """The client's place in the round's cohort, 0 … clients-1."""
    clients: int
    seed: int
    options: Mapping[str, Any]
    number: int = 0
    """The client's number among all there are; its place where nobody said."""
    cohort: Cohort = ()
    """Everyone who takes part in the round; empty where nobody said."""
    memory: Memory = field(default_factory=dict)
    """What the method remembers: empty before the first round."""
    state: State | None = None
    """The global state, for methods whose `reads` names it."""
    plan: Plan | None = None
    group: str = ""
    """The width group in question (set by `per_group`)."""
    group_number: int = 0
    """Its number in the plan."""

    def generator(self) -> np.random.Generator:
        """Randomness of this client, round and group alone."""
        return numpy_generator(self.seed, "select", self.round, self.client, self.group_number)


Choose = Callable[[Plan, Mapping[str, int], Moment], Any]
"""(plan, units to keep of each group, moment) -> an index, or a part of another kind."""

Units = Callable[[int, int, Moment], Tensor]

READS = ("state", "memory")
"""What a choice may look at that a round changes."""


def per_group(units: Units) -> Choose:
    """A choice that keeps the same units for a whole width group: `units(size, kept, moment)` for each."""

    def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> Index:
        chosen = {}
        for number, (name, group) in enumerate(plan.groups.items()):
            here = replace(at, plan=plan, group=name, group_number=number)
            chosen[name] = (
                torch.arange(group.size) if counts[name] == group.size else units(group.size, counts[name], here)
            )
        return Index.of_units(plan, chosen)

    choose.__module__ = units.__module__  # where the method is most likely to be found by other processes
    return choose


@dataclass(frozen=True)
class Need:
    """A setting a method cannot do without: the value used where a recipe is silent, and why no other will do."""

    value: Any
    why: str


@dataclass(frozen=True)
class Method:
    """A method: which part of the model clients hold, how they train it, and how their updates become the new state."""

    name: str
    title: str
    paper: str
    equation: str
    choose: Choose
    options: Mapping[str, Option] = field(default_factory=dict)
    slices: bool = True
    """False where `choose` gives parts that are no indexes: only engines that train one client at a time take them."""
    reads: Sequence[str] = ()
    """Which of `READS` a choice looks at; choices that look at neither can be made before the last round has ended."""
    shared: Callable[[Mapping[str, Any]], bool] = lambda _: False
    """True for options with which all clients of one capacity hold the same part in a round."""
    nested: Callable[[Mapping[str, Any]], bool] = lambda _: False
    """True for options with which a narrower client's units are among those of a wider one, in the same round."""
    local: Local | None = None
    """How clients train; None: they minimise the loss."""
    start: Callable[[Beginning], dict[str, Tensor]] | None = None
    """The state a run begins with; None: the model's own."""
    init: Callable[[Beginning], dict[str, Tensor]] | None = None
    """What the server remembers before the first round."""
    advance: Callable[[Closing], dict[str, Tensor]] | None = None
    """What it remembers after a round; None: what it did before."""
    close: Callable[[Closing], dict[str, Tensor]] | None = None
    """The new state; None: the average (Eq. 10)."""
    collect: str = "sums"
    """What `close` is given: "sums" of clients that held the same part, or the "updates" of single clients."""
    needs: Mapping[str, Need] = field(default_factory=dict)
    """Settings by name: used where a recipe is silent, and a recipe that says otherwise is refused."""
    values: Mapping[str, Any] = field(default_factory=dict)
    made_of: tuple[Method, ...] = ()
    """The method that chooses and the one that trains, where two were combined."""

    def __post_init__(self) -> None:
        if self.collect not in ("sums", "updates"):
            raise OptionError(f"a method collects 'sums' or 'updates', not {self.collect!r}")
        for name in self.reads:
            if name not in READS:
                raise OptionError(f"a method's choice reads 'state' or 'memory', not {name!r}")

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
        memory: Memory | None = None,
        state: State | None = None,
        number: int | None = None,
        cohort: Cohort = (),
    ) -> Any:
        """The part of one client: `client` is its place among the `clients` of this round.

        `number` is the client's own among all there are, `cohort` everyone who takes part, `memory` and `state` what
        the server holds.
        """
        check_plan(plan)
        if memory is not None and not isinstance(memory, Mapping):
            raise OptionError(f"memory must be tensors by name, not a {type(memory).__name__}")
        if state is None and "state" in self.reads:
            raise OptionError(f"{self.name} looks at the global state, so select needs state=…")
        moment = Moment(
            capacity=capacity,
            round=whole_number("round", round),
            client=whole_number("client", client),
            clients=whole_number("clients", clients, least=1),
            seed=whole_number("seed", seed),
            options=self.values,
            number=client if number is None else number,
            cohort=cohort,
            memory=memory or {},
            state=state if "state" in self.reads else None,
        )
        if moment.client >= moment.clients:
            raise OptionError(f"client {client} is not one of {clients} clients, counted from 0")
        return self.choose(plan, plan.counts(capacity, self.values.get("rounding", "floor")), moment)

    def assign(
        self,
        plan: Plan,
        cohort: Cohort,
        round: int,
        memory: Memory | None = None,
        seed: int = 0,
        *,
        state: State | None = None,
    ) -> list[Task]:
        """A task for every (client, capacity) of the round, in cohort order; equal parts are one object."""
        check_plan(plan)
        shared, cohort = self.shared(self.values), _checked_cohort(cohort)
        by_capacity: dict[float, Any] = {}
        by_key: dict[str, Any] = {}
        tasks = []
        for place, (client, capacity) in enumerate(cohort):
            part = by_capacity.get(capacity) if shared else None
            if part is None:
                found = self.select(
                    plan,
                    capacity=capacity,
                    round=round,
                    client=place,
                    clients=len(cohort),
                    seed=seed,
                    memory=memory,
                    state=state,
                    number=client,
                    cohort=cohort,
                )
                part = by_capacity[capacity] = by_key.setdefault(found.key, found)
            # A sub-model that holds everything is a full-width one, whatever the device could afford (FedAvg).
            tasks.append(
                Task(client, 1.0 if part.is_whole else capacity, part, place, single=self.collect == "updates")
            )
        return tasks

    def send(
        self,
        tasks: Sequence[Task],
        memory: Memory,
        own: Mapping[int, Memory],
        *,
        plan: Plan,
        round: int,
        seed: int,
        clients: int,
    ) -> list[Task]:
        """The tasks with what their clients are sent beside their sub-models."""
        if self.local is None or self.local.sends is None:
            return list(tasks)
        at = Sending(0, round, seed, clients, self.values)
        found = []
        for task in tasks:
            sends = self.local.sends(memory, own.get(task.client, {}), replace(at, client=task.client))
            _check_sends(self, sends, plan)
            found.append(replace(task, sends=sends))
        return found

    def aggregate(self, state: State, sums: Sequence[CohortSum], plan: Plan) -> dict[str, Tensor]:
        """The new global state from the cohorts' sums, where nothing else matters to the method."""
        return self.finish(Closing(state, sums, plan, options=self.values))

    def first_state(self, beginning: Beginning) -> dict[str, Tensor]:
        """The state a run begins with."""
        if self.start is None:
            return dict(beginning.state)
        return self._checked_state(self.start(beginning), beginning.plan, "start")

    def first_memory(self, beginning: Beginning) -> dict[str, Tensor]:
        """What the server remembers before the first round."""
        return {} if self.init is None else self._checked_memory(self.init(beginning), "init")

    def finish(self, closing: Closing) -> dict[str, Tensor]:
        """The new global state."""
        if self.close is None:
            return closing.average()
        return self._checked_state(self.close(closing), closing.plan, "close")

    def remember(self, closing: Closing) -> Memory:
        """What the server remembers after the round."""
        return closing.memory if self.advance is None else self._checked_memory(self.advance(closing), "advance")

    def _checked_memory(self, memory: object, part: str) -> dict[str, Tensor]:
        if not isinstance(memory, dict) or not all(isinstance(tensor, Tensor) for tensor in memory.values()):
            raise OptionError(f"{part} of {self.name} must return tensors by name, not {_kinds(memory)}")
        return memory

    def _checked_state(self, state: object, plan: Plan, part: str) -> dict[str, Tensor]:
        if not isinstance(state, dict):
            raise OptionError(f"{part} of {self.name} must return a state, not a {type(state).__name__}")
        try:
            plan.check_state(state)
        except FedwidthError as error:
            raise type(error)(f"{part} of {self.name}: {error}") from None
        return state


def _kinds(memory: object) -> str:
    """What was found where tensors by name were expected."""
    if not isinstance(memory, dict):
        return f"a {type(memory).__name__}"
    name, odd = next((name, value) for name, value in memory.items() if not isinstance(value, Tensor))
    return f"a {type(odd).__name__} as '{name}'"


def _check_sends(method: Method, sends: object, plan: Plan) -> None:
    """Refuse what is neither a number nor has all parameters in the full model's shapes."""
    if not isinstance(sends, Mapping):
        raise OptionError(f"{method.name} must send numbers or tensors by name, not a {type(sends).__name__}")
    for name, value in sends.items():
        if isinstance(value, (int, float)):
            continue
        if not isinstance(value, Mapping):
            raise OptionError(
                f"{method.name} sends '{name}' as a {type(value).__name__}: allowed are numbers and tensors by name"
            )
        for tensor in (tensor for tensor in plan.parameters if tensor not in plan.tied):
            if tensor not in value or tuple(value[tensor].shape) != plan.shapes[tensor]:
                found = f"has shape {list(value[tensor].shape)}" if tensor in value else "is missing"
                raise OptionError(
                    f"{method.name} sends '{name}', of which '{tensor}' {found}: it must be {list(plan.shapes[tensor])}"
                )


def _checked_cohort(cohort: Cohort) -> list[tuple[int, float]]:
    try:
        pairs = [(client, capacity) for client, capacity in cohort]
    except (TypeError, ValueError):
        raise OptionError(f"the cohort must be a list of (client, capacity) pairs, not {cohort!r}") from None
    for _, capacity in pairs:
        check_capacity(capacity)
    return pairs
