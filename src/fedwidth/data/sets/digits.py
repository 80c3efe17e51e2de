"""scikit-learn's handwritten digits: 1,797 images of 8 x 8, part of the package, so nothing is downloaded."""

from __future__ import annotations

import numpy as np
import torch

from fedwidth.data.records import Data, Split
from fedwidth.data.transforms import Transform
from fedwidth.errors import DataError

MAX_PIXEL = 16
"""Pixel values go from 0 to this."""


def load_digits() -> Data:
    """The digits with every fifth sample of each class as test set, so the split is stratified and always the same."""
    try:
        from sklearn import datasets
    except ImportError:
        raise DataError("the digits come with scikit-learn, which is not installed") from None
    bunch = datasets.load_digits()
    images = torch.from_numpy(np.asarray(bunch.images, dtype=np.uint8))[:, None]
    targets = torch.from_numpy(np.asarray(bunch.target, dtype=np.int64))
    test = torch.zeros(len(targets), dtype=torch.bool)
    for label in range(10):
        test[torch.nonzero(targets == label)[4::5, 0]] = True
    pixels = images[~test].double() / MAX_PIXEL
    transform = Transform(mean=(float(pixels.mean()),), std=(float(pixels.std()),), scale=MAX_PIXEL)
    return Data(
        "digits",
        Split(images[~test], targets[~test]),
        Split(images[test], targets[test]),
        classes=10,
        kind="images",
        transform=transform,
    )
