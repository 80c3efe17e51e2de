"""Pools of slots that one pack leaves to the next: where both train alike, steps are captured once for both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fedwidth.engines.choice import choose_packed
from fedwidth.engines.packed.limits import why_not_share_slots
from fedwidth.engines.slots.pool import SlotPool
from fedwidth.training.client import Trainer


class KeptPools:
    """Lends pools of slots to lanes, and keeps them for lanes that train alike.

    Only pools of one kind are kept: those that do not suit the next lane give their memory back before it begins.
    """

    def __init__(self) -> None:
        self._kept: list[SlotPool] = []

    @contextmanager
    def lend(self, trainers: Sequence[Trainer]) -> Iterator[SlotPool | None]:
        """A pool for the clients of these runs; None where they do not train in slots.

        One that had to do with less memory, or whose training failed, is not kept.
        """
        if choose_packed(trainers[0]) != "cuda":
            self.close()
            yield None
            return
        pool = self._take(trainers[0])
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

    def close(self) -> None:
        """Give the memory of all pools back that are not lent."""
        while self._kept:
            self._kept.pop().close()

    def _take(self, trainer: Trainer) -> SlotPool:
        if self._kept and why_not_share_slots(self._kept[0].trainer, trainer) is not None:
            self.close()
        return self._kept.pop() if self._kept else SlotPool(trainer)
