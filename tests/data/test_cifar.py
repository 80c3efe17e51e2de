from __future__ import annotations

import dataclasses
import hashlib
import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from data_fixtures import Server

from fedwidth.data import load
from fedwidth.data.sets import cifar
from fedwidth.data.sets.cifar import CIFAR10, CIFAR100, Layout
from fedwidth.data.sets.download import Remote
from fedwidth.errors import DataError

ROWS = 4
LAYOUTS = {
    "cifar10": dataclasses.replace(CIFAR10, rows=ROWS, test_rows=ROWS),
    "cifar100": dataclasses.replace(CIFAR100, rows=ROWS, test_rows=ROWS),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real layouts with four images a file."""
    monkeypatch.setattr(cifar, "CIFAR10", LAYOUTS["cifar10"])
    monkeypatch.setattr(cifar, "CIFAR100", LAYOUTS["cifar100"])


def content(layout: Layout) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Each file's label columns and images."""
    generator = np.random.default_rng(0)
    return {
        name: (
            generator.integers(0, layout.classes // 5, (ROWS, len(layout.labels))),
            generator.integers(0, 256, (ROWS, 3072), dtype=np.uint8),
        )
        for name in (*layout.train, *layout.test)
    }


def write_binary(root: Path, layout: Layout) -> dict[str, bytes]:
    files = {}
    for name, (labels, images) in content(layout).items():
        files[name] = np.concatenate([labels.astype(np.uint8), images], axis=1).tobytes()
        path = root / layout.binary / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[name])
    return files


def write_python(root: Path, layout: Layout, **change: object) -> None:
    for name, (labels, images) in content(layout).items():
        record: dict[bytes, object] = {b"data": images, b"batch_label": b"one of many", b"filenames": [b"a.png"] * ROWS}
        record |= {key: labels[:, column].tolist() for column, key in enumerate(layout.labels)}
        record |= {key.encode(): value for key, value in change.items()}
        path = root / layout.python / name.removesuffix(".bin")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(record, protocol=2))


@pytest.mark.parametrize("name", LAYOUTS)
def test_binary_version(tmp_path: Path, name: str) -> None:
    layout = LAYOUTS[name]
    write_binary(tmp_path, layout)
    data = load(name, tmp_path, download=False)
    assert (data.shape, data.classes, data.kind) == ((3, 32, 32), layout.classes, "images")
    assert (len(data.train), len(data.test)) == (ROWS * len(layout.train), ROWS)
    labels, images = content(layout)[list(layout.train)[-1]]
    assert data.train.targets[-ROWS:].tolist() == labels[:, -1].tolist(), "fine labels of CIFAR-100 come second"
    assert torch.equal(data.train.inputs[-1].flatten(), torch.from_numpy(images[-1]))
    assert data.transform.padding == 4
    assert data.transform.flip
    assert not load(name, tmp_path, download=False, augment=False).transform.augments


@pytest.mark.parametrize("name", LAYOUTS)
def test_python_version_holds_the_same(tmp_path: Path, name: str) -> None:
    write_binary(tmp_path / "binary", LAYOUTS[name])
    write_python(tmp_path / "python", LAYOUTS[name])
    one, other = (load(name, tmp_path / version, download=False) for version in ("binary", "python"))
    for split in ("train", "test"):
        assert torch.equal(getattr(one, split).inputs, getattr(other, split).inputs)
        assert torch.equal(getattr(one, split).targets, getattr(other, split).targets)


@pytest.mark.parametrize("end", [0, 1, 3073, -1])
def test_truncated_binary_file(tmp_path: Path, end: int) -> None:
    files = write_binary(tmp_path, LAYOUTS["cifar10"])
    path = tmp_path / CIFAR10.binary / "data_batch_3.bin"
    path.write_bytes(files[path.name][:end])
    found = path.stat().st_size
    with pytest.raises(
        DataError, match=rf"data_batch_3.bin is truncated or damaged: expected 12292 bytes, found {found}"
    ):
        load("cifar10", tmp_path, download=False)


def test_damaged_label(tmp_path: Path) -> None:
    files = write_binary(tmp_path, LAYOUTS["cifar10"])
    (tmp_path / CIFAR10.binary / "test_batch.bin").write_bytes(b"\x0a" + files["test_batch.bin"][1:])
    with pytest.raises(DataError, match="test_batch.bin is damaged: it holds the label 10"):
        load("cifar10", tmp_path, download=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": np.zeros((3, 3072), np.uint8)}, "expected images of shape \\[4, 3072\\], found \\[3, 3072\\]"),
        ({"data": [1, 2]}, "found nothing"),
        ({"labels": [0, 1]}, "expected 4 labels"),
        ({"labels": [0, 1, 2, 10]}, "from 0 to 9"),
        ({"labels": [0, 1, 2, 10**30]}, "from 0 to 9"),
        ({"labels": b"0123"}, "expected 4 labels"),
    ],
)
def test_python_version_with_other_content(tmp_path: Path, change: dict[str, object], message: str) -> None:
    write_python(tmp_path, LAYOUTS["cifar10"], **change)
    with pytest.raises(DataError, match=message):
        load("cifar10", tmp_path, download=False)


def test_download(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_binary(tmp_path / "source", LAYOUTS["cifar100"])
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.add(tmp_path / "source" / CIFAR100.binary, arcname=CIFAR100.binary)
    hashes = {name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}
    md5 = hashlib.md5(packed.getvalue(), usedforsecurity=False).hexdigest()
    layout = dataclasses.replace(
        LAYOUTS["cifar100"],
        archive=Remote(CIFAR100.archive.name, md5=md5),
        train={"train.bin": hashes["train.bin"]},
        test={"test.bin": hashes["test.bin"]},
    )
    monkeypatch.setattr(cifar, "CIFAR100", layout)
    server.files[f"/{layout.archive.name}"] = packed.getvalue()
    data = load("cifar100", tmp_path / "root", base_url=server.url)
    assert torch.equal(data.train.inputs, load("cifar100", tmp_path / "source", download=False).train.inputs)
    assert [path.name for path in (tmp_path / "root").iterdir()] == [layout.binary], "the archive is not kept"

    monkeypatch.setattr(cifar, "CIFAR100", dataclasses.replace(layout, test={"test.bin": "0" * 64}))
    with pytest.raises(DataError, match=r"test.bin: expected SHA-256 0+, found"):
        load("cifar100", tmp_path / "other", base_url=server.url)


def test_missing_says_which_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cifar-10-batches-bin/data_batch_1.bin, .*test_batch.bin in .*FEDWIDTH_DATA"):
        load("cifar10", tmp_path, download=False)
