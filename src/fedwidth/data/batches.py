"""Samples in batches, of which none has one sample alone: it has no batch statistics."""

from __future__ import annotations

from torch import Tensor


def in_batches(samples: Tensor, size: int) -> list[Tensor]:
    """Samples in batches of this size, one after the other; the last one may be short.

    >>> import torch
    >>> [len(batch) for batch in in_batches(torch.arange(8), 3)]
    [3, 3, 2]
    >>> [len(batch) for batch in in_batches(torch.arange(7), 3)]
    [3, 4]
    """
    found, begin = list[Tensor](), 0
    while begin < len(samples):
        end = batch_end(begin, size, len(samples))
        found.append(samples[begin:end])
        begin = end
    return found


def batch_end(begin: int, size: int, samples: int) -> int:
    """Where a batch ends: a single sample that would be left over goes with it, unless all batches have one."""
    return samples if size > 1 and begin + size + 1 == samples else min(begin + size, samples)
