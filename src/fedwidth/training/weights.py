"""What a local step works on: the weights it moves, their gradients, and what the optimiser and the rule need besides.

All of it comes as lists of tensors: the parameters of a module, one flat vector [n], or the vectors of several clients
as the rows of one matrix [clients, n].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from fedwidth.settings import TrainingSettings

Number = float | Tensor
"""A number, or a tensor of numbers that differ between clients."""


@dataclass
class Weights:
    """What a step moves and what it needs for that, tensor by tensor; all keep their addresses."""

    values: list[Tensor]
    gradients: Sequence[Tensor | None]
    """None for parameters the loss does not depend on: they stay as they are."""
    first: list[Tensor] = field(default_factory=list)
    """The first moments, of momentum and Adam."""
    second: list[Tensor] = field(default_factory=list)
    """The second moments, of Adam."""
    scratch: list[Tensor] = field(default_factory=list)
    """Room for what is computed on the way: taking new memory in every step costs more than the arithmetic. Where
    there is none, memory is taken."""
    start: list[Tensor] = field(default_factory=list)
    """What the client began with, where the rule looks at it."""
    sent: dict[str, list[Tensor]] = field(default_factory=dict)
    """What the client was sent beside its sub-model, by name and tensor; a number stands in a list of one."""
    gathered: list[Tensor] = field(default_factory=list)
    """The gradient over all data so far, where the rule asks for it."""
    steps: Number = 0.0
    """How many steps the client has taken in this round."""
    rate: Number = 0.0
    """The length of this step: the learning rate, or 0 while the gradient over all data is gathered."""
    learning_rate: Number = 0.0
    """The client's learning rate, whatever this step does with it."""
    local_steps: Number = 1.0
    """How many steps the client takes in the round in all."""
    share: Number = 0.0
    """While the gradient over all data is gathered, the batch's share of the client's samples; while training, 0."""
    rows: bool = False
    """Whether each row is a client of its own."""
    trainable: Tensor | None = None
    """In a vector: 0 for buffers and for parameters the loss does not depend on, which no rule may move. None where
    there are none."""
    decaying: Tensor | None = None
    """In a vector: the same, and 0 also for parameters that weight decay leaves alone."""
    undecayed: frozenset[int] = frozenset()
    """Numbers of the tensors that weight decay leaves alone."""
    elements: Tensor | None = None
    """In a vector, where a rule needs it: 1 for the elements of trained parameters, 0 for buffers and for the gaps
    between tensors."""

    def make_moments(self, settings: TrainingSettings) -> None:
        """Make room for the moments the optimiser needs."""
        if settings.optimiser != "sgd" or settings.momentum:
            self.first = [torch.zeros_like(value) for value in self.values]
        if settings.optimiser != "sgd":
            self.second = [torch.zeros_like(value) for value in self.values]

    def map(self, change: Callable[[Tensor], Tensor]) -> Weights:
        """A copy in which every tensor is changed but the masks, whose rows are not clients."""

        def each(value: Any) -> Any:
            if isinstance(value, Tensor):
                return change(value)
            if isinstance(value, dict):
                return {name: [change(tensor) for tensor in tensors] for name, tensors in value.items()}
            return [change(tensor) for tensor in value] if isinstance(value, list) else value

        shared = ("trainable", "decaying", "elements")
        return replace(self, **{f.name: each(getattr(self, f.name)) for f in fields(self) if f.name not in shared})
