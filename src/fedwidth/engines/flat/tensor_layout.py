"""Where tensors lie in one vector.

Every tensor begins at a multiple of `ALIGNED` elements, because libraries read several numbers at once and some fail
where these straddle an address they expect. The gaps between tensors belong to nobody: they are 0 in every vector.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of tensors by name."""

ALIGNED = 16
"""Every tensor begins at a multiple of so many elements: 64 bytes in single precision."""


class TensorLayout:
    """Where each of several tensors of one dtype lies in a vector.

    With `channels_last`, tensors of four dimensions lie in that order (their views have the usual shape): convolutions
    on GPUs are fastest so.
    """

    def __init__(self, shapes: Shapes, dtype: torch.dtype, *, channels_last: bool) -> None:
        self.shapes, self.dtype, self.channels_last = dict(shapes), dtype, channels_last
        *offsets, self.size = offsets_of(aligned(math.prod(shape)) for shape in self.shapes.values())
        self.offsets = dict(zip(self.shapes, offsets, strict=True))

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors as views of a vector [n], or of many [clients, n]."""
        ends = {name: self.offsets[name] + math.prod(shape) for name, shape in self.shapes.items()}
        return {name: self.view(name, flat[..., self.offsets[name] : end]) for name, end in ends.items()}

    def view(self, name: str, part: Tensor) -> Tensor:
        """A tensor's elements, which lie in the last dimension of `part`, in the tensor's own shape."""
        shape = self.shapes[name]
        order = [0, 2, 3, 1] if self.channels_last and len(shape) == 4 else list(range(len(shape)))
        before = part.dim() - 1
        laid = torch.unflatten(part, -1, [shape[dim] for dim in order]) if shape else part.squeeze(-1)
        return laid.permute([*range(before), *(before + order.index(dim) for dim in range(len(shape)))])

    def vector(self, tensors: Mapping[str, Tensor], device: torch.device) -> Tensor:
        """These tensors as one vector, with 0 for those that are missing."""
        flat = torch.zeros(self.size, dtype=self.dtype, device=device)
        for name, view in self.views(flat).items():
            if name in tensors:
                view.copy_(tensors[name])
        return flat

    def mark(self, names: Collection[str], *, gaps: float = 1.0) -> Tensor:
        """1 for the elements of these tensors, 0 for other tensors, and a number for the gaps between them."""
        marked = torch.full((self.size,), gaps, dtype=self.dtype)
        for name, view in self.views(marked).items():
            view.fill_(float(name in names))
        return marked


def aligned(size: int) -> int:
    """A size rounded up to the next multiple of `ALIGNED`."""
    return -(-size // ALIGNED) * ALIGNED


def offsets_of(sizes: Iterable[int]) -> list[int]:
    """The offset of each of several neighbours in memory, and at last their end.

    >>> offsets_of([2, 3])
    [0, 2, 5]
    """
    return [0, *itertools.accumulate(sizes)]
