"""What a client holds of the global model: its part.

An `Index` is the kind of part every method of the papers on partial training hands out: positions of every tensor. A
method may hand out parts of its own (factors of some rank, another network); whatever has these few attributes will do.
Engines that work on vectors know indexes only, and leave other parts to the plain loop.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

if TYPE_CHECKING:
    from fedwidth.core.cohort import CohortSum
    from fedwidth.core.cost import Cost
    from fedwidth.plan.plan import Plan


class Part(Protocol):
    """A sub-model to be cut out of the global state, trained, and added up with others like it.

    A part that goes to worker processes is pickled.
    """

    @property
    def key(self) -> str:
        """Parts with one key hold the same: their updates are added up."""

    @property
    def size(self) -> Hashable:
        """Parts of one size take turns in one module."""

    @property
    def number_of_units(self) -> int:
        """The model's size, where clients are weighed by it (FedRolex A.3)."""

    @property
    def is_whole(self) -> bool:
        """Whether it is the global model itself."""

    def cut(self, state: Mapping[str, Tensor], plan: Plan) -> dict[str, Tensor]:
        """The tensors the client is sent: copies."""

    def module(self, model: nn.Module, plan: Plan) -> nn.Module:
        """A module that takes those tensors, not yet filled; `model` is the global one, possibly without values."""

    def accumulator(self) -> CohortSum:
        """An empty sum for the updates of its clients."""

    def cost(self, model: nn.Module, plan: Plan, example: Any, *, capacity: float) -> Cost:
        """What it costs a device."""
