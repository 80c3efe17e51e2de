"""What engines do when a device runs out of memory: notice it, give memory back, and try again with less."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

Outcome = TypeVar("Outcome")


class Shrinkable(Protocol):
    """Something that can go on in less memory."""

    @property
    def can_shrink(self) -> bool:
        """Whether it can do with less memory than it uses now."""

    def shrink(self) -> None:
        """Give memory back, and do with less from now on."""


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error says that the device had no memory left; some libraries say so in words only."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and "out of memory" in str(error).lower():
            return True
        # A capture that failed ends with an error of its own, raised while that of the memory was on its way.
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def free_memory(device: torch.device, release: Callable[[], None]) -> None:
    """Call `release`, which lets go of tensors, and give their memory back once the device has done its queued work.

    On the CPU Python does so by itself, and going through all objects takes longer than many a small run.
    """
    if device.type != "cuda":
        release()
        return
    torch.cuda.synchronize(device)
    release()
    gc.collect()
    torch.cuda.empty_cache()


def if_memory_allows(work: Callable[[], None]) -> None:
    """Do work that can also be done later, and leave it undone where the device has no memory for it now."""
    try:
        work()
    except Exception as error:
        if not out_of_memory(error):
            raise


def run_within_memory(pool: Shrinkable, work: Callable[[], Outcome]) -> Outcome:
    """Do the work of a round, and begin it again with a smaller pool where the device has no memory for it.

    A pool copes by itself with too little memory while it trains. This is for what comes before and after the training:
    nothing of the round counts yet, so it can begin again.
    """
    while True:
        try:
            return work()
        except Exception as error:
            if not out_of_memory(error) or not pool.can_shrink:
                raise
        # Only here is the exception gone, and with it the tensors it held.
        pool.shrink()
