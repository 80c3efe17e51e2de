"""MNIST: four idx files, plain or compressed with gzip."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedwidth.data.checks import data_of
from fedwidth.data.records import Data, Split
from fedwidth.data.sets.download import Remote, fetch_first, missing, search_folders
from fedwidth.data.transforms import Transform
from fedwidth.errors import DataError

# The original host no longer serves the files; these two carry them unchanged.
URLS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
FILES = (
    Remote(
        "train-images-idx3-ubyte.gz",
        9912422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    Remote(
        "train-labels-idx1-ubyte.gz",
        28881,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    Remote(
        "t10k-images-idx3-ubyte.gz",
        1648877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    Remote(
        "t10k-labels-idx1-ubyte.gz",
        4542,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
FOLDERS = ("mnist", "MNIST/raw", "MNIST", ".")
NORMALISE = Transform(mean=(0.1307,), std=(0.3081,), scale=255)


def load_mnist(
    root: str | Path | None = None,
    *,
    download: bool = True,
    base_url: str | None = None,
    normalise: bool = True,
) -> Data:
    """MNIST, 60,000 + 10,000 images of 28 x 28; `normalise=False` leaves pixels between 0 and 1."""
    found = search_folders(root)
    paths = _find(found)
    if paths is None:
        names = tuple(f"mnist/{remote.name}" for remote in FILES)
        if not download:
            raise missing("mnist", found, names, "and download is off")
        folder = found[0] / "mnist"
        try:
            for remote in FILES:
                if not (folder / remote.name).is_file():
                    fetch_first(remote, (base_url,) if base_url else URLS, folder)
        except DataError as error:
            raise missing("mnist", found, names, str(error)) from None
        paths = tuple(folder / remote.name for remote in FILES)
    train, test = read_split(*paths[:2]), read_split(*paths[2:])
    transform = NORMALISE if normalise else Transform(scale=255)
    return data_of("mnist", train, test, classes=10, kind="images", transform=transform)


def read_split(images: Path, labels: Path) -> Split:
    """The images and labels of two idx files, as many of one as of the other."""
    split = Split(read_images(images), read_labels(labels))
    if len(split.inputs) != len(split.targets):
        raise DataError(f"{images} holds {len(split.inputs)} images but {labels} {len(split.targets)} labels")
    if not len(split.inputs):
        raise DataError(f"{images} holds no images")
    return split


def read_images(path: Path) -> Tensor:
    """The images of an idx file, uint8 [N, 1, height, width]."""
    return torch.from_numpy(_read_idx(path, dimensions=3))[:, None]


def read_labels(path: Path) -> Tensor:
    """The labels of an idx file, int64 [N]."""
    labels = _read_idx(path, dimensions=1)
    if labels.size and labels.max() > 9:
        raise DataError(f"{path} holds the label {labels.max()}; labels go from 0 to 9")
    return torch.from_numpy(labels.astype(np.int64))


def _find(folders: tuple[Path, ...]) -> tuple[Path, ...] | None:
    for base in folders:
        for folder in FOLDERS:
            # Unpacked by torchvision a folder holds both; the compressed file has a checksum, so it comes first.
            found = tuple(
                path
                for remote in FILES
                for path in _either(base / folder / remote.name, base / folder / remote.name.removesuffix(".gz"))
            )
            if len(found) == len(FILES):
                return found
    return None


def _either(first: Path, second: Path) -> tuple[Path, ...]:
    return (first,) if first.is_file() else (second,) if second.is_file() else ()


def _read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An idx file of bytes: 0, 0, 8 (unsigned byte), number of dimensions, each size as 4 bytes, then the values."""
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} ({len(raw)} bytes) is truncated or damaged: {error}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    head = 4 + 4 * dimensions
    if len(content) < head or content[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{path} is not an idx file of bytes with {dimensions} dimensions")
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, head, 4))
    expected = head + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise DataError(f"{path} is truncated or damaged: expected {expected} bytes for {shape}, found {len(content)}")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape).copy()
