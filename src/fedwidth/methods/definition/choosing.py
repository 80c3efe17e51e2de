"""How a method chooses what a client holds: what its function is told, and choices made group by group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from inspect import signature
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from fedwidth.core.architectures import Architectures
from fedwidth.core.index import Index
from fedwidth.core.submodel import State
from fedwidth.errors import OptionError, SelectionError
from fedwidth.methods.definition.local import Memory
from fedwidth.plan.plan import Plan
from fedwidth.randomness import numpy_generator

Cohort = Sequence[tuple[int, float]]
"""The clients that take part in a round, each as (client, capacity)."""

READS = ("state", "memory", "own")
"""What a choice may look at that changes from round to round: the global state, what the server remembers, and what
clients remember themselves."""


class Unread(dict[Any, Any]):
    """Nothing, in place of what a choice looks at without saying so: whoever looks at it is told to say it."""

    def __init__(self, method: str, what: str) -> None:
        super().__init__()
        self.method, self.what = method, what

    def _refuse(self, *asked: object) -> NoReturn:
        """Say what to do: in place of a KeyError, and of nothing where all of it is asked for."""
        lacks = f" (no {asked[0]!r})" if asked else ""
        raise OptionError(f"{self.method} cannot choose{lacks}: {only_if_read(self.what)}")

    # It is one object for all, so that what is set would be there for the next client.
    __missing__ = __setitem__ = __contains__ = get = __iter__ = __len__ = keys = values = items = _refuse


def only_if_read(what: str) -> str:
    """That a choice finds this only where its method says that it looks at it."""
    return f'at.{what} is there only for a method that says so, Method(…, reads=("{what}",))'


unread = cache(Unread)
"""Made once for every method: a choice is made for every client and round."""


@dataclass(frozen=True)
class Moment:
    """Everything a choice may depend on besides the plan: the client, the round, and what the server holds."""

    capacity: float | Fraction
    """The share of the full width that the client can afford."""
    round: int
    client: int
    """The client's place in the round's cohort, from 0 to clients - 1."""
    clients: int
    """How many clients take part in the round."""
    seed: int
    options: Mapping[str, Any]
    """The values of the method's options."""
    number: int = 0
    """The client's number among all clients there are. Its place in the cohort, unless the caller gave another."""
    cohort: Cohort = ()
    """Everyone who takes part in the round. Empty if the caller did not say who does."""
    memory: Memory = field(default_factory=dict)
    """What the method remembers of earlier rounds. Empty before the first one has ended."""
    state: State | None = None
    """The global state. None unless the method's `reads` names it."""
    own: Mapping[int, Memory] = field(default_factory=dict)
    """What every client remembers, by its number. Empty unless the method's `reads` names it."""
    architectures: Architectures = field(default_factory=dict)
    """The networks that clients of some capacities hold in place of widths of the run's model."""
    enrolled: Sequence[float] = ()
    """The capacities of all devices there are. Empty if nobody said which."""
    plan: Plan | None = None
    """The plan, which `per_group` fills in for functions that are asked about one group."""
    group: str = ""
    """The name of the width group that is asked about, filled in by `per_group`."""
    group_number: int = 0
    """The number of that group in the plan."""
    method: str = "the method"
    """The name of the method that chooses, for messages."""

    def in_group(self, plan: Plan, group: str, number: int) -> Moment:
        """The same moment, of a choice that is asked about one width group."""
        found = object.__new__(Moment)  # a choice asks this most often of all, and `replace` takes many times as long
        found.__dict__.update(self.__dict__, plan=plan, group=group, group_number=number)
        return found

    def generator(self) -> np.random.Generator:
        """A random generator (numpy's) that depends on the seed, the round, the client and the group alone."""
        return numpy_generator(self.seed, "select", self.round, self.client, self.group_number)


Choose = Callable[[Plan, Mapping[str, int], Moment], Any]
"""A function (plan, number of units to keep of each group, moment) -> an index, or a part of another kind."""

Units = Callable[[int, int, Moment], Tensor]
"""A function (size of a group, number of units to keep, moment) -> the units to keep."""


def takes_three(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with three arguments, as those of a choice are."""
    try:
        signature(function).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # some C functions do not say
        return True
    return True


def title_of(function: Callable[..., Any]) -> str:
    """What a function is called in its user's program."""
    return str(getattr(function, "__name__", type(function).__name__))


def everything(plan: Plan, counts: Mapping[str, int], at: Moment) -> Index:
    """The choice that gives every client the whole model, whatever its capacity."""
    del counts, at
    return Index.whole(plan)


def per_group(units: Units) -> Choose:
    """Turn `units(size, kept, moment)` into a choice that keeps the same units in all tensors of a width group."""

    def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> Index:
        chosen = {}
        for number, (name, group) in enumerate(plan.groups.items()):
            if counts[name] == group.size:
                chosen[name] = torch.arange(group.size)
                continue
            try:
                chosen[name] = units(group.size, counts[name], at.in_group(plan, name, number))
            except TypeError:
                if takes_three(units):
                    raise
                raise OptionError(
                    f"{at.method} cannot choose: {title_of(units)} is called with (size, kept, at) for every group, but"
                    f" takes {signature(units)}"
                ) from None
        index = Index.of_units(plan, chosen)
        if index.counts != counts:
            name = next(name for name, kept in index.counts.items() if kept != counts[name])
            raise SelectionError(
                f"{at.method} keeps {index.counts[name]} units of group '{name}', but {counts[name]} were asked for: a"
                " choice keeps as many as it is told"
            )
        return index

    choose.__module__ = units.__module__  # where the method is most likely to be found by other processes
    return choose
