"""From stored batches to what a model takes: normalisation and, in training, random crop and flip.

A transform works on a whole batch on the device the batch is on. What is random is drawn first (`draw`), from an
explicit generator, and handed over as a plain tensor: the result repeats, and a CUDA graph can stage the draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedwidth.data.trees import widened
from fedwidth.errors import OptionError


@dataclass(frozen=True)
class Transform:
    """Images: (x / scale - mean) / std per channel, and in training a random crop after padding and a random flip.

    Without mean and std the batch keeps its values; integers become int64 (tokens), or floats where `scale` is set.
    Inputs of several tensors are no images: they keep their values.

    >>> halves = Transform(mean=(0.5,), std=(0.5,), scale=255)
    >>> halves(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).tolist()
    [[[[-1.0, 1.0]]]]
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    scale: float | None = None
    padding: int = 0
    flip: bool = False
    mirror: bool = False
    """Whether what lies beyond the border of an image is its mirror image, and not black."""

    @property
    def augments(self) -> bool:
        """Whether training batches are changed at random."""
        return self.padding > 0 or self.flip

    def draw(self, samples: int, generator: torch.Generator) -> Tensor:
        """Row offset, column offset and flip (0 or 1) of each sample: [samples, 3], on the generator's device."""
        device = generator.device
        crops = torch.randint(2 * self.padding + 1, (samples, 2), generator=generator, device=device)
        flips = torch.randint(1 + self.flip, (samples, 1), generator=generator, device=device)
        return torch.cat([crops, flips], dim=1)

    def __call__(
        self,
        batch: Any,
        train: bool = False,
        generator: torch.Generator | None = None,
        *,
        draws: Tensor | None = None,
    ) -> Any:
        """The batch as the model takes it; in training, `draws` (or a generator to draw with) say how to augment."""
        if not isinstance(batch, Tensor):
            return widened(batch)
        if train and self.augments:
            if draws is None:
                if generator is None:
                    raise OptionError("a training batch that is augmented needs a generator or draws")
                draws = self.draw(len(batch), generator)
            batch = crop_and_flip(batch, draws.to(batch.device), self.padding, mirror=self.mirror)
        if self.scale is not None:
            batch = batch / self.scale
        elif not batch.is_floating_point():
            return batch.long()
        if self.mean is not None and self.std is not None:
            batch = (batch - _channels(self.mean, batch)) / _channels(self.std, batch)
        return batch


def _channels(values: tuple[float, ...], batch: Tensor) -> Tensor:
    return _constant(values, batch.dtype, batch.device)


@lru_cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Kept on its device: copying it there for each batch would stall, and is forbidden inside a CUDA graph."""
    return torch.tensor(values, dtype=dtype, device=device)[:, None, None]


def crop_and_flip(images: Tensor, draws: Tensor, padding: int, *, mirror: bool = False) -> Tensor:
    """Pad N x C x H x W images with zeros, cut out H x W at each image's offsets and mirror where its flip is 1.

    Padding happens before normalisation, so the border is black as in the published experiments. With `mirror` the
    image goes on as in a mirror that stands on its outermost pixels.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]])
    >>> crop_and_flip(image, torch.tensor([[0, 1, 0]]), padding=1).tolist()
    [[[[0, 0], [1, 2]]]]
    >>> crop_and_flip(image, torch.tensor([[1, 1, 1]]), padding=1).tolist()
    [[[[2, 1], [4, 3]]]]
    >>> crop_and_flip(image, torch.tensor([[0, 1, 0]]), padding=1, mirror=True).tolist()
    [[[[3, 4], [1, 2]]]]
    """
    samples, channels, height, width = images.shape
    device = images.device
    padded = images if mirror else functional.pad(images, (padding,) * 4)
    row, column, flip = draws.unbind(1)
    rows = row[:, None] + torch.arange(height, device=device)
    columns = torch.arange(width, device=device).expand(samples, width)
    columns = column[:, None] + torch.where(flip[:, None] == 1, width - 1 - columns, columns)
    if mirror:
        rows, columns = (_mirrored(places - padding, size) for places, size in ((rows, height), (columns, width)))
    sample = torch.arange(samples, device=device)[:, None, None, None]
    channel = torch.arange(channels, device=device)[None, :, None, None]
    return padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _mirrored(places: Tensor, size: int) -> Tensor:
    """Places beyond the ends of a line of this length as those that a mirror on the last ones shows."""
    return size - 1 - (size - 1 - places.abs()).abs()
