"""How much shared memory there is, and how much of it sending something to another process takes."""

from __future__ import annotations

import io
import math
import pickle
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

SHARED_MEMORY = Path("/dev/shm")
"""The folder where Linux keeps shared memory; other systems set it no limit of its own."""


def free_shared_memory() -> float:
    """Bytes of shared memory that are free; infinite where the system sets it no limit of its own."""
    return shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else math.inf


def count_shared(content: Any) -> int:
    """Bytes of shared memory that sending this takes: tensors there already, and views of one memory, count once.

    >>> import torch
    >>> rows = torch.zeros(10, 3)
    >>> count_shared([rows, {"part": rows[2:]}, torch.zeros(5, dtype=torch.uint8)])
    125
    """
    finder = TensorFinder(_Nowhere())
    finder.dump(content)
    return sum(finder.sizes.values())


class TensorFinder(pickle.Pickler):
    """Pickles everything but tensors, whose sizes it notes instead."""

    def __init__(self, out: io.RawIOBase | io.BytesIO) -> None:
        super().__init__(out)
        self.sizes: dict[int, int] = {}
        """Bytes by the address of each memory that is not shared yet."""

    def persistent_id(self, obj: Any) -> int | None:
        """A number for a tensor, which is then left out of the pickle, and None for anything else."""
        if not isinstance(obj, Tensor):
            return None
        memory = obj.untyped_storage()
        if memory.device.type == "cpu" and not memory.is_shared():
            self.sizes[memory.data_ptr()] = memory.nbytes()
        return 0


class _Nowhere(io.RawIOBase):
    """A file that keeps nothing of what is written to it."""

    def write(self, content: Any) -> int:
        """Forget the content."""
        return len(content)
