"""Clients whose parts are no slices (factors, models of their own) on vectors.

Their tensors are laid out in the order of their module, cut out of the state by the part itself, and added up by the
part's own sum: only the training in between is that of every other vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from fedwidth.core.part import Part
from fedwidth.core.updates import Update
from fedwidth.engines.flat.tasks import FlatUpdate
from fedwidth.engines.flat.tensor_layout import Shapes, TensorLayout
from fedwidth.plan.trace import tensors_of
from fedwidth.training.client import Trainer


class PartLayout(TensorLayout):
    """Where each tensor of the parts of one size lies in their vectors."""

    def __init__(self, part: Part, trainer: Trainer, channels_last: Callable[[Shapes], bool]) -> None:
        dtype = next(trainer.model.parameters()).dtype
        tensors, tied = tensors_of(part.module(trainer.model, trainer.plan))
        own = {name: tensor for name, tensor in tensors.items() if name not in tied}
        shapes = {name: tuple(tensor.shape) for name, tensor in own.items() if tensor.dtype == dtype}
        super().__init__(shapes, dtype, channels_last=channels_last(shapes))
        self.others = [name for name in own if name not in shapes]
        """The tensors of other dtypes, which are not in the vector."""


class PartCohort:
    """Clients of a round that hold the same part, which is no slice."""

    def __init__(self, part: Part, sub: PartLayout) -> None:
        self.part, self.sub = part, sub
        self.sum = part.accumulator()

    def cut(self, state: Mapping[str, Tensor], trainer: Trainer) -> tuple[Tensor, dict[str, Tensor]]:
        """What the clients begin with: a vector, and the tensors that are not in it."""
        tensors = self.part.cut(state, trainer.plan)
        others = {name: tensors[name].to(trainer.device) for name in self.sub.others}
        return self.sub.vector(tensors, trainer.device), others

    def add(self, update: FlatUpdate, weight: float, labels: Tensor | None) -> None:
        """Add what a client has trained, with the client's weight."""
        client = update.flat_task.task.client
        own = Update(self.tensors(update), self.part, weight, labels=labels, client=client)  # type: ignore[arg-type]
        self.sum.add(own)

    def tensors(self, update: FlatUpdate) -> dict[str, Tensor]:
        """What a client has trained, by name."""
        return {**self.sub.views(update.flat), **update.others}
