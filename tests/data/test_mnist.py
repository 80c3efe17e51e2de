from __future__ import annotations

import gzip
import hashlib
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from data_fixtures import Server

from fedwidth.data import load
from fedwidth.data.sets import mnist
from fedwidth.data.sets.download import Remote
from fedwidth.errors import DataError

NAMES = [remote.name for remote in mnist.FILES]


def idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return head + array.astype(np.uint8).tobytes()


def contents(train: int = 5, test: int = 3) -> dict[str, bytes]:
    pixels = np.arange(train * 6).reshape(train, 2, 3)
    arrays = [pixels, np.arange(train) % 10, pixels[:test], np.arange(test) % 10]
    return {name: gzip.compress(idx(array), mtime=0) for name, array in zip(NAMES, arrays, strict=True)}


def write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "."])
@pytest.mark.parametrize("plain", [False, True])
def test_layouts(tmp_path: Path, folder: str, plain: bool) -> None:
    files = contents()
    if plain:
        files = {name.removesuffix(".gz"): gzip.decompress(content) for name, content in files.items()}
    write(tmp_path / "root" / folder, files) if folder != "." else write(tmp_path / "root", files)
    data = load("mnist", tmp_path / "root", download=False)
    assert (data.shape, data.classes, data.kind, len(data.test)) == ((1, 2, 3), 10, "images", 3)
    assert data.train.inputs.dtype == torch.uint8
    assert data.train.inputs[4].flatten().tolist() == list(range(24, 30))
    assert data.train.targets.tolist() == [0, 1, 2, 3, 4]
    expected = (24 / 255 - 0.1307) / 0.3081
    assert data.transform(data.train.inputs)[4, 0, 0, 0].item() == pytest.approx(expected, rel=1e-5)


def test_found_by_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "env" / "mnist", contents())
    monkeypatch.setenv("FEDWIDTH_DATA", str(tmp_path / "env"))
    data = load("mnist", download=False, normalise=False)
    assert data.transform(data.train.inputs)[0, 0, 0, 1].item() == pytest.approx(1 / 255)


@pytest.mark.parametrize("end", [0, 3, 7, 20, -1])
@pytest.mark.parametrize("plain", [False, True])
def test_truncated_file(tmp_path: Path, end: int, plain: bool) -> None:
    write(tmp_path / "mnist", contents())
    path = tmp_path / "mnist" / NAMES[0]
    content = path.read_bytes()
    if plain:
        path.unlink()
        path, content = path.with_suffix(""), gzip.decompress(content)
    path.write_bytes(content[:end])
    with pytest.raises(DataError, match=path.name):
        load("mnist", tmp_path, download=False)


def test_truncation_names_the_sizes(tmp_path: Path) -> None:
    write(tmp_path / "mnist", contents())
    path = tmp_path / "mnist" / NAMES[0]
    path.write_bytes(gzip.compress(idx(np.zeros((5, 2, 3)))[:-7]))
    with pytest.raises(DataError, match="expected 46 bytes .* found 39"):
        load("mnist", tmp_path, download=False)


def test_damaged_labels(tmp_path: Path) -> None:
    files = contents()
    write(tmp_path / "mnist", files | {NAMES[1]: gzip.compress(idx(np.full(5, 10)))})
    with pytest.raises(DataError, match="label 10"):
        load("mnist", tmp_path, download=False)
    (tmp_path / "mnist" / NAMES[1]).write_bytes(files[NAMES[3]])
    with pytest.raises(DataError, match="5 images but .* 3 labels"):
        load("mnist", tmp_path, download=False)


def test_files_that_do_not_fit_each_other(tmp_path: Path) -> None:
    write(tmp_path / "mnist", contents() | {NAMES[2]: gzip.compress(idx(np.zeros((3, 3, 3))))})
    with pytest.raises(DataError, match=r"training and test inputs have different shapes: \[1, 2, 3\] and \[1, 3, 3\]"):
        load("mnist", tmp_path, download=False)
    for name, array in zip(NAMES[2:], (np.zeros((0, 2, 3)), np.zeros(0)), strict=True):
        (tmp_path / "mnist" / name).write_bytes(gzip.compress(idx(array)))
    with pytest.raises(DataError, match=f"{NAMES[2]} holds no images"):
        load("mnist", tmp_path, download=False)


def remotes(files: dict[str, bytes]) -> tuple[Remote, ...]:
    return tuple(Remote(name, len(raw), hashlib.sha256(raw).hexdigest()) for name, raw in files.items())


def test_download(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = contents()
    monkeypatch.setattr(mnist, "FILES", remotes(files))
    server.files = {f"/{name}": content for name, content in files.items()}
    data = load("mnist", tmp_path / "root", base_url=server.url)
    assert len(data.train) == 5
    assert len(server.requests) == 4
    load("mnist", tmp_path / "root", base_url=server.url)
    assert len(server.requests) == 4, "what is there is not downloaded again"


def test_damaged_download(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = contents()
    monkeypatch.setattr(mnist, "FILES", remotes(files))
    server.files = {f"/{name}": content for name, content in files.items()}
    server.files[f"/{NAMES[2]}"] = b"damaged".ljust(len(files[NAMES[2]]))
    with pytest.raises(DataError, match=f"{NAMES[2]}: expected SHA-256"):
        load("mnist", tmp_path / "root", base_url=server.url)
    assert not (tmp_path / "root" / "mnist" / NAMES[2]).exists()


def test_offline_says_what_is_expected_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError) as caught:
        load("mnist", tmp_path / "root", download=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(DataError) as offline:
            load("mnist", tmp_path / "root", base_url=f"http://127.0.0.1:{free.getsockname()[1]}/")
    for error in (caught, offline):
        assert "\n" not in str(error.value)
        assert str(tmp_path / "root") in str(error.value)
        assert all(f"mnist/{name}" in str(error.value) for name in NAMES)
