"""What a method is told when a run begins and when a round ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from fedwidth.adapters.averages import Average
from fedwidth.core.aggregation import finalise
from fedwidth.core.answers import AnswerSum
from fedwidth.core.architectures import Architectures
from fedwidth.core.cohort import CohortSum
from fedwidth.core.submodel import State, put, take
from fedwidth.devices.memory import Memory as StepMemory
from fedwidth.errors import unknown
from fedwidth.methods.definition.local import Memory
from fedwidth.methods.definition.task import Task
from fedwidth.plan.plan import Plan

if TYPE_CHECKING:
    from fedwidth.data import Data

Made = TypeVar("Made")
Answer = Callable[[nn.Module, Any], Any]
"""A function (model, batch of inputs) -> what counts of the model's output."""


@dataclass(frozen=True)
class Beginning:
    """What is known before the first round."""

    state: State
    plan: Plan
    enrolled: Sequence[float] = (1.0,)
    """The capacities that clients of this run may have."""
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    model: nn.Module | None = None
    """The global model, where a run begins; None where only shapes are asked for."""
    example: Any = None
    """Inputs of two samples, as the model takes them."""
    answer: Answer = lambda model, inputs: model(inputs)
    """As of `Closing`."""
    architectures: Architectures = field(default_factory=dict)
    """The method's own, which it fills in."""
    takes: Callable[[nn.Module], StepMemory] | None = None
    """(module) -> the memory that training it takes, with the run's batches, loss and optimiser; None where only shapes
    are asked for. The module's values are forgotten."""


@dataclass(frozen=True)
class Closing:
    """What is known when all clients of a round have trained."""

    state: State
    """The global state that the round began with."""
    sums: Sequence[CohortSum]
    """One mean for all clients that held the same part, in order of first appearance. If the method collects updates:
    one for each client, in the order of `tasks`."""
    plan: Plan
    memory: Memory = field(default_factory=dict)
    """What the method remembers of earlier rounds."""
    tasks: Sequence[Task] = ()
    """The tasks of the clients whose work counts."""
    round: int = 0
    rounds: int = 1
    """How many rounds the whole run has."""
    seed: int = 0
    clients: int = 1
    """How many clients there are in all, whether they take part in this round or not."""
    enrolled: Sequence[float] = (1.0,)
    """The capacities that clients of this run may have."""
    model: nn.Module | None = None
    """The global model. Its weights may be those of any round: `state` has the right ones."""
    public: Data | None = None
    """Data that the server holds, if the run has some."""
    example: Any = None
    """Inputs of two samples, as the model takes them."""
    answer: Answer = lambda model, inputs: model(inputs)
    """(model, batch of inputs) -> what counts of the model's output, in the precision of the settings: a tensor of
    logits, where there are classes."""
    validate: Callable[[nn.Module], float] | None = None
    """(model) -> how well it does on the run's validation samples, the higher the better; None if there are none."""
    channels_last: bool = False
    """Whether the model computes with the channels of convolutions last in memory, which is faster; `answer` lays
    images out so."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    options: Mapping[str, Any] = field(default_factory=dict)
    architectures: Architectures = field(default_factory=dict)
    """The method's own."""
    averaging: Average | None = None
    """How adapters are averaged, where that is not unit by unit."""
    _made: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, make: Callable[[Closing], Made]) -> Made:
        """What a function makes of this round, computed once: the state and the memory may both follow from it."""
        if make not in self._made:
            self._made[make] = make(self)
        found: Made = self._made[make]
        return found

    def average(self) -> dict[str, Tensor]:
        """The average of what clients trained, element by element; what nobody held stays as it is (FedRolex
        Eq. 10). Adapters may have a rule of their own (`adapter.average`)."""
        if self.averaging is not None:
            return self.averaging(self.state, self.sums, self.plan, seed=self.seed, round=self.round)
        return finalise(self.state, self.sums, self.plan)

    def answers(self) -> list[Mapping[str, Tensor]]:
        """What clients sent in place of their models, in the order of `tasks`."""
        found: Sequence[Any] = self.sums
        return [one.answers for one in found if isinstance(one, AnswerSum)]

    def reported(self, name: str) -> dict[str, Tensor]:
        """What clients reported under this name, added up in the full model's shapes; 0 where nobody reported."""
        reported = [summed.reports[name] for summed in self.sums if name in summed.reports]
        if self.sums and not reported:
            there = sorted({other for summed in self.sums for other in summed.reports})
            raise unknown("report", name, there, also="a local rule names in `adds` what its clients report")
        totals: dict[str, Tensor] = {}
        for summed in reported:
            weights = summed.weight
            for tensor, mean in summed.mean.items():
                total = totals.setdefault(tensor, torch.zeros_like(self.state[tensor]))
                put(total, take(total, summed.index, tensor) + mean * weights[tensor], summed.index, tensor)
        return totals
