"""What a client holds of the global model: its part.

An `Index` is the kind of part every method of the papers on partial training hands out: positions of every tensor. A
method may hand out parts of its own (factors of some rank, another network); whatever has these few attributes will do.
Engines that work on vectors cut and average indexes in a few kernels; other parts cut and add up by themselves there
too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torch import Tensor, nn

from fedwidth.core.architectures import Held

if TYPE_CHECKING:
    from fedwidth.core.cohort import CohortSum
    from fedwidth.core.cost import Cost
    from fedwidth.core.index import Index
    from fedwidth.plan.plan import Plan


class Part(Protocol):
    """What a client trains: it is cut out of the global state, and what becomes of it is added up with others like it.

    A part that goes to worker processes is pickled. Besides what follows it may have

        full_width        True where its layers are as wide as the model's, whatever the client's capacity
        trained(plan)     the names of the tensors that are trained, where others rest
        one_module        a name for all parts that differ in that alone, so that they can take turns in one module
    """

    @property
    def key(self) -> str:
        """A name for what the part holds: the updates of parts with equal keys are added up."""

    @property
    def size(self) -> Hashable:
        """The size of the part: parts of equal size take turns in one module."""

    @property
    def number_of_units(self) -> int:
        """How many units the part has, for weighing clients by the size of their models (FedRolex A.3)."""

    @property
    def is_whole(self) -> bool:
        """Whether the part is the whole global model."""

    def cut(self, state: Mapping[str, Tensor], plan: Plan) -> dict[str, Tensor]:
        """Copies of the tensors that the client is sent."""

    def module(self, model: nn.Module, plan: Plan) -> nn.Module:
        """A module that takes the tensors of `cut`, not yet filled; the global `model` may be without values."""

    def accumulator(self) -> CohortSum:
        """An empty sum for the updates of the clients that hold this part."""

    def cost(self, model: nn.Module, plan: Plan, example: Any, *, capacity: float) -> Cost:
        """What training the part costs a device."""


@dataclass(frozen=True, eq=False)
class WidthPart:
    """A part that is a model of its own and no slice of the global state: one for each width or architecture, kept by
    the method."""

    kind: ClassVar[str]
    """What such models are called in their keys."""
    index: Index | None
    """Where its tensors would lie in its whole network's; it and they stay behind when a part goes to worker
    processes."""
    held: Held
    """Which model it is."""
    number_of_units: int
    """How many units, or numbers that stand for them, it holds."""
    tensors: Mapping[str, Tensor] = field(repr=False, default_factory=dict)
    """What a client is sent."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "index": None, "tensors": {}}

    @property
    def width(self) -> float:
        """The share of its network's width that it has."""
        return self.held.width

    @property
    def key(self) -> str:
        """Clients of one width, or of one architecture, hold the same."""
        return f"{self.kind} {self.held.label}"

    @property
    def size(self) -> Hashable:
        """Its width, or its architecture."""
        return self.key

    @property
    def is_whole(self) -> bool:
        """It is never the run's own model."""
        return False

    def cut(self, state: Mapping[str, Tensor], plan: Plan) -> dict[str, Tensor]:
        """Its tensors, as the method has them."""
        del state, plan
        return {name: tensor.detach().clone() for name, tensor in self.tensors.items()}
