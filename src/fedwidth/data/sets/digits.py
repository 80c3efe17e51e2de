"""scikit-learn's handwritten digits: 1,797 images of 8 x 8, part of the package, so nothing is downloaded."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedwidth.data.records import Data, Split
from fedwidth.data.transforms import Transform
from fedwidth.errors import DataError

MAX_PIXEL = 16
"""Pixel values go from 0 to this."""
FILE = ("datasets", "data", "digits.csv.gz")
"""Where scikit-learn keeps them."""


def load_digits() -> Data:
    """The digits with every fifth sample of each class as test set, so the split is stratified and always the same."""
    table = _read_table()
    images = torch.from_numpy(table[:, :-1].astype(np.uint8).reshape(-1, 1, 8, 8))
    targets = torch.from_numpy(table[:, -1].astype(np.int64))
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


def _read_table() -> NDArray[np.float64]:
    """One row for each sample: 64 pixels and the digit, from the file in scikit-learn's package.

    Importing scikit-learn for it would take a device 90 MB of memory.
    """
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise DataError("the digits come with scikit-learn, which is not installed")
    path = Path(found.submodule_search_locations[0], *FILE)
    if path.exists():
        return np.loadtxt(path, delimiter=",")  # NumPy unpacks .gz by itself
    from sklearn import datasets  # of a version that keeps it elsewhere

    bunch = datasets.load_digits()
    return np.column_stack([bunch.data, bunch.target])
