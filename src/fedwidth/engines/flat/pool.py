"""What a pool of slots (`slots.pool`) and a pool of stacks (`stacks.pool`) have in common: both train flat tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from fedwidth.engines.flat.orders import Order
from fedwidth.engines.flat.tasks import FlatTask, FlatUpdate
from fedwidth.engines.flat.tensor_layout import Shapes
from fedwidth.engines.memory import Shrinkable
from fedwidth.training.client import Trainer


class Pool(Shrinkable, Protocol):
    """Trains the clients of a round whose sub-models are vectors."""

    channels_last: Callable[[Shapes], bool]
    """Whether the channels of convolutions lie last in the memory of sub-models whose tensors have these shapes."""

    def train(
        self, flat_tasks: Sequence[FlatTask], meanwhile: Callable[[], None] | None = None
    ) -> Iterator[FlatUpdate]:
        """Train every task and yield the updates in the order of the tasks.

        `meanwhile` is called once, while the device is busy. An update may still be under way on the device when it is
        yielded. Once the iterator has ended (`wait_for_all`), the device has done with all of them, and those with a
        value that is not finite were refused.
        """

    def prepare(self, trainer: Trainer, orders: Sequence[Order]) -> None:
        """Make ready what the clients of a coming round will train on, as far as that can be done beforehand."""

    def close(self) -> None:
        """Give memory and threads back."""


def wait_for_all(trained: Iterator[FlatUpdate]) -> None:
    """Wait until a pool is done with the updates that have been taken; one that is not finite raises here."""
    left = next(trained, None)
    assert left is None, "not every result was taken"
