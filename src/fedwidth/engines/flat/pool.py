"""A crew trains jobs: a pool of slots (`slots`) or of stacks (`stacks`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from fedwidth.core.index import Index
from fedwidth.engines.faults import out_of_memory
from fedwidth.engines.flat.jobs import Done, Job, Order
from fedwidth.training.client import Trainer

Outcome = TypeVar("Outcome")


class Crew(Protocol):
    """Trains jobs."""

    channels_last: Callable[[Index], bool]
    """Whether the channels of convolutions lie last in the memory of sub-models of this size."""

    @property
    def can_shrink(self) -> bool:
        """Whether it can do with less memory."""

    def train(self, jobs: Sequence[Job], meanwhile: Callable[[], None] | None = None) -> Iterator[Done]:
        """Train every job; they come back in the order given. `meanwhile` is called once, while the device is busy.

        They may still be under way on the device. Behind the last one (`settle`) it has done with them all, and what is
        not finite was refused.
        """

    def gather(self, trainer: Trainer, orders: Sequence[Order]) -> None:
        """Make ready what clients of a round to come will train on, where that can be done beforehand."""

    def shrink(self) -> None:
        """Give memory back, and do with less from now on."""

    def close(self) -> None:
        """Give memory and threads back."""


def settle(trained: Iterator[Done]) -> None:
    """Wait for jobs whose results have been taken; one that is not finite raises."""
    left = next(trained, None)
    assert left is None, "not every result was taken"


def if_it_fits(work: Callable[[], None]) -> None:
    """Do what may as well be done later, unless the device has no memory for it now."""
    try:
        work()
    except Exception as error:
        if not out_of_memory(error):
            raise


def fitting(crew: Crew, work: Callable[[], Outcome]) -> Outcome:
    """Do a round's work.

    A crew copes with too little memory while it trains. If there is none left for what comes before or after, the
    round begins again with a smaller crew: nothing of it counts yet.
    """
    while True:
        try:
            return work()
        except Exception as error:
            if not out_of_memory(error) or not crew.can_shrink:
                raise
        # Only here is the exception gone, and with it the tensors it held.
        crew.shrink()
