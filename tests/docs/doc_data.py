"""Stand-ins for the data sets that the documentation's commands train on: the layout of the real files, random images.

fedwidth compares checksums of what it downloads, not of files it is given, so nothing has to be switched off. CIFAR's
files have a fixed number of rows, which is how a damaged one is found out: `use` says that there are fewer of them.
"""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedwidth.data.sets import cifar
from fedwidth.data.sets.mnist import FILES

IMAGES, TEST_IMAGES = 1000, 200
ROWS = IMAGES // len(cifar.CIFAR10.train)
CIFAR10 = replace(cifar.CIFAR10, rows=ROWS, test_rows=TEST_IMAGES)


def write_data(folder: Path) -> Path:
    """MNIST and CIFAR-10 as their authors publish them, but for the images."""
    generator = np.random.default_rng(0)
    (folder / "mnist").mkdir(parents=True)
    for file in FILES:
        number = IMAGES if file.name.startswith("train") else TEST_IMAGES
        shape = (number, 28, 28) if "images" in file.name else (number,)
        values = generator.integers(0, 256, shape) if "images" in file.name else np.arange(number) % 10
        head = bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
        (folder / "mnist" / file.name).write_bytes(gzip.compress(head + values.astype(np.uint8).tobytes(), 1))
    (folder / CIFAR10.binary).mkdir()
    for name in (*CIFAR10.train, *CIFAR10.test):
        number = ROWS if name in CIFAR10.train else TEST_IMAGES
        labels, images = np.arange(number) % 10, generator.integers(0, 256, (number, cifar.PIXELS))
        rows = np.concatenate([labels[:, None], images], axis=1)
        (folder / CIFAR10.binary / name).write_bytes(rows.astype(np.uint8).tobytes())
    return folder


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fedwidth find the data there, and nowhere else."""
    monkeypatch.setenv("FEDWIDTH_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr(cifar, "CIFAR10", CIFAR10)
