"""CIFAR-10 and CIFAR-100: the official binary version, or the python version through a reader that runs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedwidth.data.records import Data, Split
from fedwidth.data.sets.download import Remote, fetch, missing, search_folders, unpack
from fedwidth.data.sets.unpickle import read_pickle
from fedwidth.data.transforms import Transform
from fedwidth.errors import DataError

URL = "https://www.cs.toronto.edu/~kriz/"
PIXELS = 3 * 32 * 32
# The published experiments normalise both sets with CIFAR-10's numbers.
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


@dataclass(frozen=True)
class Layout:
    """Where a CIFAR set lies on disk and how its rows begin."""

    name: str
    classes: int
    archive: Remote
    binary: str  # folder of the binary version
    python: str  # folder of the python version
    rows: int  # of each training file
    test_rows: int
    train: dict[str, str]  # binary training file -> SHA-256
    test: dict[str, str]
    labels: tuple[bytes, ...]  # the label bytes that begin a binary row, by their names in the python version

    def expected(self) -> tuple[str, ...]:
        """The binary files, as a person would look for them."""
        return tuple(f"{self.binary}/{name}" for name in (*self.train, *self.test))


CIFAR10 = Layout(
    name="cifar10",
    classes=10,
    archive=Remote("cifar-10-binary.tar.gz", md5="c32a1d4ab5d03f1284b67883e8d87530"),
    binary="cifar-10-batches-bin",
    python="cifar-10-batches-py",
    rows=10_000,
    test_rows=10_000,
    train={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    },
    test={"test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"},
    labels=(b"labels",),
)
CIFAR100 = Layout(
    name="cifar100",
    classes=100,
    archive=Remote("cifar-100-binary.tar.gz", md5="03b5dce01913d631647c71ecec9e9cb8"),
    binary="cifar-100-binary",
    python="cifar-100-python",
    rows=50_000,
    test_rows=10_000,
    train={"train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"},
    test={"test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"},
    labels=(b"coarse_labels", b"fine_labels"),
)


def load_cifar(
    layout: Layout,
    root: str | Path | None = None,
    *,
    download: bool = True,
    base_url: str | None = None,
    normalise: bool = True,
    mirror: bool = False,
    augment: bool = True,
) -> Data:
    """A CIFAR set, 50,000 + 10,000 images of 3 x 32 x 32; in training cropped (padding 4) and flipped at random.

    Without `normalise` pixels are from 0 to 1; with `mirror` a crop beyond the border shows the mirrored image.
    """
    found = search_folders(root)
    folder = _find(layout, found)
    if folder is None:
        if not download:
            raise missing(layout.name, found, layout.expected(), "and download is off")
        try:
            _download(layout, found[0], base_url or URL)
        except DataError as error:
            raise missing(layout.name, found, layout.expected(), str(error)) from None
        folder = found[0] / layout.binary
    read = _read_binary if folder.name == layout.binary else _read_python
    parts = [read(folder, name, layout, layout.rows) for name in layout.train]
    train = Split(torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts]))
    (test_name,) = layout.test
    test = Split(*read(folder, test_name, layout, layout.test_rows))
    mean, std = (MEAN, STD) if normalise else (None, None)
    transform = Transform(mean, std, scale=255, padding=4 if augment else 0, flip=augment, mirror=mirror)
    return Data(layout.name, train, test, classes=layout.classes, kind="images", transform=transform)


def load_cifar10(
    root: str | Path | None = None,
    *,
    download: bool = True,
    base_url: str | None = None,
    normalise: bool = True,
    mirror: bool = False,
    augment: bool = True,
) -> Data:
    """CIFAR-10; see `load_cifar`."""
    options = {"normalise": normalise, "mirror": mirror, "augment": augment}
    return load_cifar(CIFAR10, root, download=download, base_url=base_url, **options)


def load_cifar100(
    root: str | Path | None = None,
    *,
    download: bool = True,
    base_url: str | None = None,
    normalise: bool = True,
    mirror: bool = False,
    augment: bool = True,
) -> Data:
    """CIFAR-100 with its 100 fine labels; see `load_cifar`."""
    options = {"normalise": normalise, "mirror": mirror, "augment": augment}
    return load_cifar(CIFAR100, root, download=download, base_url=base_url, **options)


def _find(layout: Layout, folders: tuple[Path, ...]) -> Path | None:
    for base in folders:
        for version in (layout.binary, layout.python):
            names = (*layout.train, *layout.test)
            if version == layout.python:
                names = tuple(name.removesuffix(".bin") for name in names)
            if all((base / version / name).is_file() for name in names):
                return base / version
    return None


def _download(layout: Layout, folder: Path, url: str) -> None:
    archive = fetch(layout.archive, url, folder)
    members = {f"{layout.binary}/{name}": sha256 for name, sha256 in (layout.train | layout.test).items()}
    try:
        unpack(archive, folder, members)
    finally:
        archive.unlink(missing_ok=True)


Part = tuple[torch.Tensor, torch.Tensor]


def _read_binary(folder: Path, name: str, layout: Layout, rows: int) -> Part:
    """Rows of label bytes (CIFAR-100: coarse, then fine), then 3,072 pixels, plane by plane."""
    path = folder / name
    width = len(layout.labels) + PIXELS
    found = path.stat().st_size
    if found != rows * width:
        raise DataError(f"{path} is truncated or damaged: expected {rows * width} bytes, found {found}")
    table = np.fromfile(path, np.uint8).reshape(rows, width)
    return _part(path, table[:, len(layout.labels) :], table[:, len(layout.labels) - 1], layout.classes)


def _read_python(folder: Path, name: str, layout: Layout, rows: int) -> Part:
    path = folder / name.removesuffix(".bin")
    content = read_pickle(path)
    images, labels = content.get(b"data"), content.get(layout.labels[-1])
    if not isinstance(images, np.ndarray) or images.shape != (rows, PIXELS):
        shape = list(images.shape) if isinstance(images, np.ndarray) else "nothing"
        raise DataError(f"{path}: expected images of shape {[rows, PIXELS]}, found {shape}")
    valid = range(layout.classes)
    if not isinstance(labels, list) or len(labels) != rows or not all(label in valid for label in labels):
        kind = layout.labels[-1].decode()
        raise DataError(f"{path}: expected {rows} {kind} from 0 to {layout.classes - 1}")
    return _part(path, images, np.array(labels, np.int64), layout.classes)


def _part(path: Path, images: np.ndarray, labels: np.ndarray, classes: int) -> Part:
    if labels.max() >= classes:
        raise DataError(f"{path} is damaged: it holds the label {labels.max()}, expected 0 to {classes - 1}")
    pixels = np.array(images, np.uint8, order="C").reshape(-1, 3, 32, 32)
    return torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64))
