"""The allocator of a device: memory that a step has freed goes back to the system at once.

glibc learns from every large block that is freed to keep blocks of that size (up to 32 MB) for itself. Training frees
large blocks of many sizes, so the process grows to twice what is alive. With a fixed limit large blocks are the
system's again: the process takes what training needs, which is also what can be predicted (`devices/memory.py`).
"""

from __future__ import annotations

import ctypes
import sys

LARGE = 2**20
"""Blocks from this size on are given back."""
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h; setting it also ends the learning


def give_back_memory() -> bool:
    """Let this process give back what it frees, from now on; whether its allocator can (that of glibc does)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return bool(ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, LARGE))
    except (OSError, AttributeError):  # another C library
        return False
