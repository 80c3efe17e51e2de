from __future__ import annotations

import hashlib
import io
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from data_fixtures import Server

from fedwidth.data import IGNORE, load, make_partition
from fedwidth.data.sets import stackoverflow
from fedwidth.data.sets.download import Remote
from fedwidth.data.sets.vocabulary import BOS, EOS, OOV, PAD, SPECIAL
from fedwidth.errors import DataError

h5py = pytest.importorskip("h5py")

TRAIN = {"00000001": ["how do i sort", "thanks ."], "00000007": ["sort"], "00000009": ["i do i do i do"]}
TEST = {"00000003": ["how ?"], "00000007": ["i sort", "do"]}


def write(folder: Path, train: dict[str, list[str]] = TRAIN, test: dict[str, list[str]] = TEST) -> Path:
    folder.mkdir(parents=True)
    for name, users in zip(stackoverflow.FILES, (train, test), strict=True):
        with h5py.File(folder / name, "w") as file:
            for user, sentences in users.items():
                group = file.create_group(f"examples/{user}")
                raw = [sentence.encode() for sentence in sentences]
                group.create_dataset("tokens", data=raw, dtype=h5py.special_dtype(vlen=bytes))
                group.create_dataset("score", data=list(range(len(raw))))
                group.create_dataset("title", data=[b"a title"] * len(raw), dtype=h5py.special_dtype(vlen=bytes))
    return folder


@pytest.mark.parametrize("folder", ["stackoverflow", ""])
def test_by_hand(tmp_path: Path, folder: str) -> None:
    write(tmp_path / "root" / folder)
    data = load("stackoverflow", tmp_path / "root", download=False, words=3, length=4)
    assert data.vocabulary == (*SPECIAL, "do", "i", "sort")  # 4, 4 and 2 times in the training file
    do, i, sort = 4, 5, 6
    assert data.train.inputs.tolist() == [
        [BOS, OOV, do, i],
        [BOS, OOV, OOV, PAD],
        [BOS, sort, PAD, PAD],
        [BOS, i, do, i],
    ]
    assert data.train.targets.tolist() == [
        [OOV, do, i, sort],  # as long as allowed: no EOS
        [OOV, OOV, EOS, IGNORE],
        [sort, EOS, IGNORE, IGNORE],
        [i, do, i, do],  # cut
    ]
    assert data.train.users is not None
    assert data.test.users is not None
    assert data.train.users.tolist() == [0, 0, 1, 2]
    assert data.test.users.tolist() == [3, 1, 1], "a user of the test file alone is numbered after the others"
    partition = make_partition(data, "natural")
    assert partition.sizes.tolist() == [2, 1, 1]
    assert [share.tolist() for share in partition.test] == [[], [1, 2], []]


def test_limits(tmp_path: Path) -> None:
    write(tmp_path / "stackoverflow")
    data = load("stackoverflow", tmp_path, users=2, per_user=1)
    assert (len(data.train), len(data.test)) == (2, 1)


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"fedwidth\[hdf5\]"):
        load("stackoverflow", tmp_path)


def test_missing_truncated_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected stackoverflow/stackoverflow_train.h5, stackoverflow/.*test.h5 in"):
        load("stackoverflow", tmp_path, download=False)
    folder = write(tmp_path / "stackoverflow")
    train = folder / stackoverflow.FILES[0]
    whole = train.read_bytes()
    train.write_bytes(whole[:1000])
    with pytest.raises(DataError, match=r"stackoverflow_train.h5 \(1000 bytes\) is truncated"):
        load("stackoverflow", tmp_path, download=False)
    with h5py.File(train, "w") as file:
        file.create_group("other")
    with pytest.raises(DataError, match="no group 'examples'"):
        load("stackoverflow", tmp_path, download=False)
    with h5py.File(train, "w") as file:
        file.create_group("examples/1")
    with pytest.raises(DataError, match="examples/1 has no 'tokens'"):
        load("stackoverflow", tmp_path, download=False)


def test_download(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "source")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:bz2") as tar:
        for name in stackoverflow.FILES:
            tar.add(source / name, arcname=name)
    sha256 = hashlib.sha256(packed.getvalue()).hexdigest()
    monkeypatch.setattr(stackoverflow, "ARCHIVE", Remote("stackoverflow.tar.bz2", sha256=sha256))
    server.files["/stackoverflow.tar.bz2"] = packed.getvalue()
    data = load("stackoverflow", tmp_path / "root", base_url=server.url)
    assert torch.equal(data.train.inputs, load("stackoverflow", source, download=False).train.inputs)
    assert not (tmp_path / "root" / "stackoverflow" / "stackoverflow.tar.bz2").exists()
