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
from torch import Tensor

from fedwidth.core.architectures import Architectures
from fedwidth.core.cohort import CohortSum
from fedwidth.core.submodel import State
from fedwidth.core.updates import check_made
from fedwidth.errors import OptionError, unknown, whole_number
from fedwidth.methods.definition.answering import answer
from fedwidth.methods.definition.checks import check_sends, checked_cohort, checked_memory, checked_state
from fedwidth.methods.definition.choosing import READS, Choose, Cohort, Moment, everything, unread
from fedwidth.methods.definition.closing import Beginning, Closing
from fedwidth.methods.definition.local import Local, Memory, Sending
from fedwidth.methods.definition.options import Option
from fedwidth.methods.definition.task import Task
from fedwidth.plan.plan import Plan, check_plan


@dataclass(frozen=True)
class Need:
    """A value that a setting must have for the method to work, and why no other will do."""

    value: Any
    why: str


_GONE = {
    "aggregate_with": "close, which is given a Closing",
    "local_widths": "local=Local(widths=…)",
    "remembers": 'reads=("memory",) with init and advance',
}
"""Fields of 0.1, and what they are now."""


@dataclass(frozen=True)
class Method:
    """A method: which part of the model clients hold, how they train it, and how their updates become the new state."""

    name: str
    """The name recipes use."""
    title: str
    """The name tables and reports show."""
    paper: str
    equation: str
    """Where the paper defines the choice."""
    choose: Choose
    """A function (plan, number of units to keep of each group, moment) -> what the client holds."""
    serves: Choose | None = None
    """A function like `choose` that says what a device of a capacity runs, where that is not what clients were given in
    the last round: so sub-models are measured and taken away. None: what they were given."""
    options: Mapping[str, Option] = field(default_factory=dict)
    """The options a recipe may set, by name."""
    slices: bool = True
    """False if `choose` gives parts that are no indexes: those are cut and added up one by one."""
    reads: Sequence[str] = ()
    """Which of "state", "memory" (the server's) and "own" (the clients') `choose` looks at. A choice that looks at none
    can be made before the last round has ended."""
    shared: Callable[[Mapping[str, Any]], bool] = lambda _: False
    """Whether, with these options, all clients of one capacity hold the same part in a round."""
    nested: Callable[[Mapping[str, Any]], bool] = lambda _: False
    """Whether, with these options, the units of a narrower client are among those of a wider one in the same round."""
    local: Local | None = None
    """How clients train. None: they minimise the loss."""
    start: Callable[[Beginning], dict[str, Tensor]] | None = None
    """A function that makes the state a run begins with. None: it is the model's own."""
    init: Callable[[Beginning], dict[str, Tensor]] | None = None
    """A function that makes what the server remembers before the first round. None: nothing."""
    advance: Callable[[Closing], dict[str, Tensor]] | None = None
    """A function that makes what the server remembers after a round. None: its memory never changes."""
    close: Callable[[Closing], dict[str, Tensor]] | None = None
    """A function that makes the new global state. None: it is the average of the updates (FedRolex Eq. 10)."""
    unfit: Callable[[Memory, float], str | None] | None = None
    """A function (what the server remembers before the first round, capacity) -> why devices of this capacity can train
    nothing, or None if they can. Those that cannot are left out of every round. None: all can."""
    freezes: bool = False
    """Whether clients hold layers that they do not train, and that take part in the forward pass."""
    uploads: str = ""
    """What a client sends, in words, where that is not what it holds."""
    collect: str = "sums"
    """What `close` is given: one mean for all clients that held the same part ("sums"), or one update for each client
    ("updates")."""
    additive: bool = True
    """False if the server cannot do with the sum of what clients of one size send, as where it averages products of
    factors."""
    adapters: str = ""
    """For methods that are defined for adapters: over whom their server means to average products, the "holders" of a
    unit or all "clients" of a round. A run that has none gets adapters of the default rank."""
    moves_frozen: bool = False
    """Whether `close` adds to frozen weights what clients trained, so that they must be sent that too."""
    public: bool = False
    """Whether `close` needs data of the server's own, without labels."""
    classes: bool = False
    """Whether `close` takes answers for logits of classes, as distillation does: then a run must have some."""
    needs: Mapping[str, Need] = field(default_factory=dict)
    """Settings that must have a certain value, by name. A recipe that does not mention one gets that value, and a
    recipe with another value is refused."""
    several: bool = False
    """Whether clients of some capacities may hold networks that are no parts of the run's model."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The value of every option, set by `with_options`."""
    architectures: Architectures = field(default_factory=dict)
    """Such networks, set by the run that has some."""
    enrolled: tuple[float, ...] = ()
    """The capacities of a run's devices, set by the run."""
    made_of: tuple[Method, ...] = ()
    """If two methods were combined: the one that chooses and the one that trains."""

    def __new__(cls, *_: Any, **given: Any) -> Method:
        """Say what has become of fields of 0.1."""
        for name in _GONE.keys() & given.keys():
            raise OptionError(f"Method's {name} is gone since 0.2: it is {_GONE[name]} now")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        if self.collect not in ("sums", "updates"):
            raise OptionError(f"a method collects 'sums' or 'updates', not {self.collect!r}")
        if not callable(self.choose):
            raise OptionError(f"choose of a method must be a function, not {self.choose!r}")
        for name in self.reads:
            if name not in READS:
                raise OptionError(f"a method's choice reads 'state', 'memory' or 'own', not {name!r}")
        for name, option in self.options.items():
            if not isinstance(option, Option):
                raise OptionError(f"option '{name}' of a method must be an Option(…), not {option!r}")
        local = self.local
        if local is not None and local.answers is not None and (self.slices or self.collect != "updates"):
            raise OptionError("a method whose clients keep their models hands out no slices, and collects 'updates'")
        if local is not None and self.slices and (local.gives is not None or local.before is not None):
            raise OptionError(
                "clients are given something, or do something before they train, only where they hold no slices"
            )

    @property
    def holds_all(self) -> bool:
        """Whether every client holds the whole model, whatever its capacity: then there are no narrower sub-models."""
        return self.choose is everything

    def with_options(self, /, **given: Any) -> Method:
        """A copy of this method with options set; unknown names and values are refused."""
        given = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
        for name, value in given.items():
            if name not in self.options:
                raise unknown(f"option of {self.name}", name, self.options)
            option = self.options[name]
            if not option.allows(value):
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
        own: Mapping[int, Memory] | None = None,
    ) -> Any:
        """The part of the model that one client trains: an `Index`, or a part of another kind.

        `client` is the client's place among the `clients` of this round, `number` its number among all clients there
        are, `cohort` everyone who takes part. `memory` and `state` are what the server holds, `own` what clients
        remember.
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
            memory=self._read("memory", memory),
            state=state if "state" in self.reads else None,
            own=self._read("own", own),
            architectures=self.architectures,
            enrolled=self.enrolled,
            method=self.name,
        )
        if moment.client >= moment.clients:
            raise OptionError(f"client {client} is not one of {clients} clients, counted from 0")
        counts = plan.counts(capacity, self.values.get("rounding", "floor"))
        return answer(self.choose, plan, counts, moment, self.reads)

    def _read(self, what: str, held: Mapping[Any, Any] | None) -> Mapping[Any, Any]:
        """What the choice may look at, or nothing, which says so where it should have said that it looks at it."""
        return (held or {}) if what in self.reads else unread(self.name, what)

    def assign(
        self,
        plan: Plan,
        cohort: Cohort,
        round: int = 0,
        memory: Memory | None = None,
        seed: int = 0,
        *,
        state: State | None = None,
        own: Mapping[int, Memory] | None = None,
    ) -> list[Task]:
        """One task for every (client, capacity) of the cohort, in its order. Parts that are equal are one object."""
        check_plan(plan)
        shared, cohort = self.shared(self.values), checked_cohort(cohort)
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
                    own=own,
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
        public: int = 0,
    ) -> list[Task]:
        """The same tasks, completed by what their clients are sent beside their sub-models.

        `own` is what each client remembers, `clients` how many there are in all, `public` how many public samples.
        """
        local = self.local
        if local is None or (local.sends is None and local.gives is None):
            return list(tasks)
        found = []
        for task in tasks:
            at = Sending(task.client, round, seed, clients, self.values, public)
            if local.sends is not None:
                sends = local.sends(memory, own.get(task.client, {}), at)
                check_sends(self.name, sends, plan)
                task = replace(task, sends=sends)
            if local.gives is not None:
                task = replace(task, given=checked_memory(self.name, "gives", local.gives(memory, at)))
            found.append(task)
        return found

    def aggregate(self, state: State, sums: Sequence[CohortSum], plan: Plan) -> dict[str, Tensor]:
        """The new global state from the means of the cohorts, for methods that look at nothing else."""
        return self.finish(Closing(state, sums, plan, options=self.values))

    def first_state(self, beginning: Beginning) -> dict[str, Tensor]:
        """The global state that a run begins with."""
        made: dict[str, State] = {"the model": beginning.state}
        first = dict(beginning.state)
        if self.start is not None:
            first = checked_state(self.name, "start", self.start(beginning), beginning.plan, like=beginning.state)
            made[f"start of {self.name}"] = first
        check_made(made)
        return first

    def first_memory(self, beginning: Beginning) -> dict[str, Tensor]:
        """What the server remembers before the first round."""
        if self.init is None:
            return {}
        beginning = replace(beginning, architectures=self.architectures)
        return checked_memory(self.name, "init", self.init(beginning))

    def left_out(self, memory: Memory, enrolled: Sequence[float]) -> dict[float, str]:
        """The enrolled capacities whose devices can train nothing, and why; refused where all are."""
        asked = {} if self.unfit is None else {each: self.unfit(memory, each) for each in enrolled}
        found = {capacity: why for capacity, why in asked.items() if why is not None}
        if found and len(found) == len(enrolled):
            raise OptionError(f"no device can train with {self.title}: {found[max(found)]}")
        return found

    def finish(self, closing: Closing) -> dict[str, Tensor]:
        """The new global state after a round."""
        if self.close is None:
            return closing.average()
        return checked_state(self.name, "close", self.close(closing), closing.plan, like=closing.state)

    def remember(self, closing: Closing) -> Memory:
        """What the server remembers after a round."""
        return closing.memory if self.advance is None else checked_memory(self.name, "advance", self.advance(closing))
