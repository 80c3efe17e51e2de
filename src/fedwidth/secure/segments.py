"""Segments: the pieces in which updates of different sizes are added up, so that a client hides among all who hold one.

Windows of a round that are nested, W_0 inside W_1 inside ... W_L, are cut into shells: shell j is what W_j has and
W_(j-1) has not. A client of class c holds the shells 0 to c, which are exactly its sub-model. An element lies in the
shell of the widest of its axes: of position (row, column) it is the later one of the two.

Where windows are not nested, the clients that hold the same are a segment by themselves: a cohort.

The words of a client lie segment after segment, and inside a segment in the order of tensors and rows. Positions are
sorted, so clients of any width have the words of a shell in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Kind = TypeVar("Kind", bound=np.generic)

Levels = Sequence[NDArray[np.uint8]]
"""For each axis of a tensor the shell in which every position begins to be held."""

MAX_CLASSES = 256
"""Different sub-models of a round, at most: the number of a shell is one byte."""


@dataclass(frozen=True)
class Words:
    """Where the words of one client's sub-model lie."""

    segments: tuple[int, ...]
    """The numbers of the segments that the client holds."""
    lengths: tuple[int, ...]
    """How many words each of them has."""
    order: NDArray[np.int64] | None = None
    """For each word the element of the sub-model, its tensors laid one after the other; None: as they lie."""

    @property
    def length(self) -> int:
        """How many words the client sends."""
        return sum(self.lengths)

    def arrange(self, elements: NDArray[Kind]) -> NDArray[Kind]:
        """The elements of a sub-model in the order of its words."""
        return elements if self.order is None else elements[self.order]

    def restore(self, words: NDArray[Kind]) -> NDArray[Kind]:
        """Words in the order of the sub-model's elements: the inverse of `arrange`.

        >>> words = Words((0, 1), (2, 2), np.array([0, 2, 1, 3]))
        >>> words.restore(words.arrange(np.array([5, 6, 7, 8]))).tolist()
        [5, 6, 7, 8]
        """
        if self.order is None:
            return words
        found = np.empty_like(words)
        found[self.order] = words
        return found

    def split(self, words: NDArray[Kind]) -> dict[int, NDArray[Kind]]:
        """The words of each segment, as views."""
        ends = np.cumsum(self.lengths)
        pieces = np.split(words, ends[:-1])
        return dict(zip(self.segments, pieces, strict=True))


def shells(tensors: Sequence[Levels], classes: int) -> Words:
    """The words of a sub-model whose tensors have these levels, held by a client of the last of so many classes.

    A shell that is empty, where two classes hold the same, has no words.

    >>> rows, columns = np.array([1, 0], np.uint8), np.array([0, 0, 1], np.uint8)
    >>> found = shells([(rows, columns)], classes=2)
    >>> found.lengths, found.order.tolist()
    ((2, 4), [3, 4, 0, 1, 2, 5])
    """
    found = [element_levels(levels) for levels in tensors]
    flat = np.concatenate(found) if found else np.empty(0, np.uint8)
    lengths = np.bincount(flat, minlength=classes)
    return Words(tuple(range(classes)), tuple(map(int, lengths)), np.argsort(flat, kind="stable"))


def cohort(number: int, length: int) -> Words:
    """The words of a sub-model that is a segment by itself."""
    return Words((number,), (length,))


def element_levels(levels: Levels) -> NDArray[np.uint8]:
    """The shell of every element of a tensor, in row order: the largest level of its positions.

    >>> element_levels([np.array([0, 1], np.uint8), np.array([0, 2], np.uint8)]).tolist()
    [0, 2, 1, 2]
    """
    start = np.zeros((), np.uint8)
    return reduce(lambda outer, own: np.maximum(outer[..., None], own), levels, start).reshape(-1)
