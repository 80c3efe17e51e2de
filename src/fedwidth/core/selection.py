"""Selection: which units of a width group a client keeps. Pure index functions; the methods are made of these.

Every function returns `kept` distinct units of 0 … size-1 as a sorted LongTensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def prefix(size: int, kept: int) -> Tensor:
    """The first units (HeteroFL, FjORD; FedRolex Eq. 6).

    >>> prefix(5, 3).tolist()
    [0, 1, 2]
    """
    return rolling(size, kept, 0)


def rolling(size: int, kept: int, start: int) -> Tensor:
    """A window that starts at `start` and wraps around (FedRolex Eq. 4).

    >>> rolling(5, 3, 4).tolist()
    [0, 1, 4]
    """
    start %= size
    end = start + kept
    if end <= size:
        return torch.arange(start, end)
    return torch.cat([torch.arange(end - size), torch.arange(start, size)])


def random(size: int, kept: int, generator: np.random.Generator) -> Tensor:
    """Units drawn uniformly without replacement (Federated Dropout; FedRolex Eq. 5)."""
    return torch.from_numpy(np.sort(generator.choice(size, kept, replace=False)))


def least_seen(size: int, kept: int, seen: Tensor, *, clients: int, generator: np.random.Generator) -> Tensor:
    """Units drawn with probability proportional to clients + 1 - seen (thesis Eq. 2.3).

    `seen[u]` is how many of the previous round's `clients` held unit u, so a unit all of them held is still possible.
    """
    odds = (clients + 1 - seen).numpy().astype(np.float64)
    return torch.from_numpy(np.sort(generator.choice(size, kept, replace=False, p=odds / odds.sum())))


def block(size: int, kept: int, number: int) -> Tensor:
    """One block of an axis that is cut into blocks of `kept` units, counted from 0 (FedBRB Eq. 4).

    Where the size is no multiple of `kept`, the last block is moved back to end with the axis, so that all blocks have
    one size and cover everything.

    >>> block(8, 4, 1).tolist(), block(7, 3, 2).tolist()
    ([4, 5, 6, 7], [4, 5, 6])
    """
    start = min((number % blocks(size, kept)) * kept, size - kept)
    return torch.arange(start, start + kept)


def blocks(size: int, kept: int) -> int:
    """How many blocks of `kept` units it takes to cover an axis."""
    return -(-size // kept)


def grid_coordinates(number: int, grid: Sequence[int]) -> tuple[int, ...]:
    """The coordinates of a block in a grid that is counted row by row, starting over at the end (FedBRB Eq. 4).

    >>> [grid_coordinates(n, (2, 2)) for n in (0, 1, 3, 4)]
    [(0, 0), (0, 1), (1, 1), (0, 0)]
    """
    coordinates = []
    for length in reversed(grid):
        number, coordinate = divmod(number, length)
        coordinates.append(coordinate)
    return tuple(reversed(coordinates))
