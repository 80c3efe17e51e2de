"""Samples that are held, in one block of memory.

Thousands of small tensors that are held among large ones which come and go leave gaps between them that nothing fits
into: a cache of 64 MiB then takes half a gigabyte. Rows of one block leave none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Row:
    """Where the input of a held sample lies, and its target."""

    place: int
    target: float


class Rows:
    """Room for the inputs of so many samples; pairs of a tensor of one shape and a number fit, and all else does not.

    >>> import torch
    >>> rows = Rows(most_bytes=64, samples=10)
    >>> held = rows.put((torch.arange(3), 7))
    >>> held, rows.get(held), rows.put("something else")
    (Row(place=0, target=7), (tensor([0, 1, 2]), 7), 'something else')
    """

    def __init__(self, *, most_bytes: int, samples: int) -> None:
        self.most_bytes, self.samples = most_bytes, samples
        self._block: Tensor | None = None
        self._free: list[int] = []

    def put(self, sample: Any) -> Any:
        """What to hold instead of the sample: its row, or itself where it has none."""
        if type(sample) is not tuple or len(sample) != 2 or not isinstance(sample[1], int | float):
            return sample
        tensor, target = sample
        if type(tensor) is not Tensor or tensor.requires_grad or tensor.device.type != "cpu" or not tensor.nbytes:
            return sample
        if self._block is None:
            number = min(self.most_bytes // tensor.nbytes + 1, self.samples)
            self._block, self._free = tensor.new_empty((number, *tensor.shape)), list(range(number))[::-1]
        if not self._free or tensor.shape != self._block.shape[1:] or tensor.dtype != self._block.dtype:
            return sample
        place = self._free.pop()
        self._block[place] = tensor
        return Row(place, target)

    def get(self, held: Any) -> Any:
        """The sample again; a copy, as its row may be another's soon."""
        if not isinstance(held, Row):
            return held
        assert self._block is not None
        return self._block[held.place].clone(), held.target

    def let_go(self, held: Any) -> None:
        """Its row may be taken."""
        if isinstance(held, Row):
            self._free.append(held.place)
