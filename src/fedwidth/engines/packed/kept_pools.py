"""Pools of slots that one pack leaves to the next: where both train alike, steps are captured once for both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedwidth.engines.choice import choose_packed
from fedwidth.engines.packed.limits import why_not_train_together
from fedwidth.engines.slots.pool import SlotPool
from fedwidth.training.client import Trainer


class KeptPools:
    """Lends pools of slots to lanes, and keeps them for lanes that train alike.

    Only pools of one kind are kept: those that do not suit the next lane give their memory back before it begins. With
    a pool stays the first run that trained in it, its model included: what the next lane's runs are compared with.
    """

    def __init__(self) -> None:
        self._kept: list[SlotPool] = []

    @contextmanager
    def lend(self, trainer: Trainer) -> Iterator[SlotPool | None]:
        """A pool for the clients of runs that train as this one does; None where they do not train in slots.

        One that had to do with less memory, or whose training failed, is not kept.
        """
        self.keep_for(trainer)
        if choose_packed(trainer) != "cuda":
            yield None
            return
        pool = self._kept.pop() if self._kept else SlotPool(trainer)
        try:
            yield pool
        except BaseException:
            pool.close()
            raise
        pool.batches_ahead.clear()
        if pool.has_shrunk:
            pool.close()
        else:
            self._kept.append(pool)

    def keep_for(self, trainer: Trainer) -> None:
        """Give the memory of all pools back that are of no use to a pack that trains as this run does."""
        useful = choose_packed(trainer) == "cuda"
        if self._kept and not (useful and why_not_train_together(self._kept[0].trainer, trainer) is None):
            self.close()

    def close(self) -> None:
        """Give the memory of all pools back that are not lent."""
        while self._kept:
            self._kept.pop().close()
