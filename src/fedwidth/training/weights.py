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
    second: list[Tensor] = field(default_factory=list)
    """The moments of momentum and Adam."""
    scratch: list[Tensor] = field(default_factory=list)
    """Room for what is computed on the way: taking new memory in every step costs more than the arithmetic. Where
    there is none, memory is taken."""
    start: list[Tensor] = field(default_factory=list)
    """What the client began with, where the rule looks at it."""
    sent: dict[str, list[Tensor]] = field(default_factory=dict)
    """What it was sent beside that, tensor by tensor; numbers stand in a list of one."""
    gathered: list[Tensor] = field(default_factory=list)
    """The gradient over all data so far, where the rule asks for it."""
    steps: Number = 0.0
    """Steps taken so far."""
    rate: Number = 0.0
    """The length of this step: the learning rate, or 0 while the gradient over all data is gathered."""
    learning_rate: Number = 0.0
    """The client's learning rate, whatever this step does with it."""
    local_steps: Number = 1.0
    """Steps the client takes in the round."""
    share: Number = 0.0
    """What the batch counts in that: its share of the client's samples, and 0 while training."""
    rows: bool = False
    """Whether each row is a client of its own."""
    trainable: Tensor | None = None
    """In a vector: 0 for buffers and for parameters the loss does not depend on, which weight decay must not move. None
    where there are none."""
    undecayed: frozenset[int] = frozenset()
    """Numbers of the tensors that weight decay leaves alone."""
    elements: Tensor | None = None
    """In a vector, where a rule needs it: 1 for the elements of trained parameters, 0 for buffers and for the gaps
    between tensors."""

    def moments(self, settings: TrainingSettings) -> None:
        """Make room for the moments the optimiser needs."""
        if settings.optimiser != "sgd" or settings.momentum:
            self.first = [torch.zeros_like(value) for value in self.values]
        if settings.optimiser != "sgd":
            self.second = [torch.zeros_like(value) for value in self.values]

    def map(self, change: Callable[[Tensor], Tensor]) -> Weights:
        """The same with every tensor that has clients as its rows changed; masks have not."""

        def each(value: Any) -> Any:
            if isinstance(value, Tensor):
                return change(value)
            if isinstance(value, dict):
                return {name: [change(tensor) for tensor in tensors] for name, tensors in value.items()}
            return [change(tensor) for tensor in value] if isinstance(value, list) else value

        shared = ("trainable", "elements")
        return replace(self, **{f.name: each(getattr(self, f.name)) for f in fields(self) if f.name not in shared})
