from __future__ import annotations

import gzip
import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwidth.data import IGNORE, Data, load, make_partition
from fedwidth.data.sets.vocabulary import BOS, EOS, OOV, PAD, SPECIAL, sequences
from fedwidth.errors import DataError, OptionError

USERS = {
    "ann": ["the cat", "the dog", "a cat", "the the", "cat!"],  # the last of five is held out
    "bob": ["one"],  # too few to hold one out
    "cem": ["zebra", " ", "the zebra sleeps now"] + ["the"] * 3,  # the blank message does not count
}


def write(path: Path, users: dict[str, list[str]]) -> Path:
    content = "".join(json.dumps({"user": user, "text": text}) + "\n" for user, text in users.items()).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def words(data: Data, tokens: torch.Tensor) -> list[str]:
    assert data.vocabulary is not None
    return [data.vocabulary[token] for token in tokens.tolist() if token != IGNORE]


@pytest.mark.parametrize("name", ["talk.jsonl", "talk.jsonl.gz"])
def test_by_hand(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, USERS)
    data = load("text", tmp_path, path=name, words=3, length=4)
    # Training words: the 1+1+2+1+1+1 (ann, cem), cat 2, then a dog now one sleeps zebra(2): zebra beats a.
    assert data.vocabulary == (*SPECIAL, "the", "cat", "zebra")
    assert (data.kind, data.classes, data.shape) == ("tokens", 7, (4,))
    the, cat, zebra = 4, 5, 6
    inputs, targets = data.train.inputs.tolist(), data.train.targets.tolist()
    assert inputs[0] == [BOS, the, cat, PAD]
    assert targets[0] == [the, cat, EOS, IGNORE]
    assert inputs[1] == [BOS, the, OOV, PAD]
    # "the zebra sleeps now" has four words: BOS and four words, then now and EOS.
    row = inputs.index([BOS, the, zebra, OOV])
    assert targets[row] == [the, zebra, OOV, OOV]
    assert inputs[row + 1] == [OOV, PAD, PAD, PAD]
    assert targets[row + 1] == [EOS, IGNORE, IGNORE, IGNORE]
    assert data.train.users is not None
    assert data.test.users is not None
    assert data.train.users.tolist() == [0] * 4 + [1] + [2] * 5
    assert data.test.users.tolist() == [0, 2]
    assert words(data, data.test.targets[0]) == ["cat", "<oov>", "<eos>"]
    assert data.train.inputs.dtype == torch.int16


def test_cut_drops_what_is_too_long(tmp_path: Path) -> None:
    write(tmp_path / "t.jsonl", USERS)
    data = load("text", tmp_path, path="t.jsonl", words=3, length=4, cut=True)
    assert data.train.users is not None
    assert data.train.users.tolist() == [0] * 4 + [1] + [2] * 4


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(4, 99), max_size=50), st.integers(1, 20))
def test_every_word_is_a_target_once(message: list[int], length: int) -> None:
    pieces = sequences(message, length, cut=False)
    assert [token for piece in pieces for token in piece[1:]] == [*message, EOS]
    assert all(2 <= len(piece) <= length + 1 for piece in pieces)
    assert all(one[-1] == other[0] for one, other in pairwise(pieces))
    assert pieces[0][0] == BOS
    assert sequences(message, length, cut=True) == pieces[:1]


def test_marks_in_the_text_are_not_taken_for_ours(tmp_path: Path) -> None:
    write(tmp_path / "t.jsonl", {"a": ["<pad> <eos> hi"] * 5})
    data = load("text", tmp_path, path="t.jsonl")
    assert data.vocabulary == (*SPECIAL, "hi")
    assert data.train.targets[0, :4].tolist() == [OOV, OOV, 4, EOS]


def test_natural_partition_follows_users(tmp_path: Path) -> None:
    write(tmp_path / "t.jsonl", USERS)
    data = load("text", tmp_path, path="t.jsonl", words=3, length=4)
    partition = make_partition(data, "natural")
    assert partition.sizes.tolist() == [4, 1, 5]
    assert partition.test.sizes.tolist() == [1, 0, 1]
    assert partition.labels[1].tolist() == [EOS, OOV], "IGNORE is no label"


def test_limits(tmp_path: Path) -> None:
    write(tmp_path / "t.jsonl", USERS)
    data = load("text", tmp_path, path="t.jsonl", users=1, per_user=2, holdout=0.5)
    assert (len(data.train), len(data.test)) == (1, 1)
    assert words(data, data.train.targets[0]) == ["the", "cat", "<eos>"]


def test_cached_until_file_or_settings_change(tmp_path: Path, own_cache: Path) -> None:
    path = write(tmp_path / "t.jsonl", USERS)
    folders = lambda: sorted((own_cache / "text").iterdir())  # noqa: E731
    first = load("text", path=path)
    assert len(folders()) == 1
    stamp = (folders()[0] / "train_inputs.npy").stat().st_mtime_ns
    again = load("text", path=path)
    assert (folders()[0] / "train_inputs.npy").stat().st_mtime_ns == stamp
    assert torch.equal(first.train.inputs, again.train.inputs)
    load("text", path=path, words=2)
    assert len(folders()) == 2
    write(path, USERS | {"dan": ["new"]})
    os.utime(path, ns=(1, 1))
    assert make_partition(load("text", path=path), "natural").sizes.tolist() == [4, 1, 4, 1]
    assert len(folders()) == 3


def test_damaged_cache_is_built_again(tmp_path: Path, own_cache: Path) -> None:
    path = write(tmp_path / "t.jsonl", USERS)
    expected = load("text", path=path).train.inputs.clone()
    (folder,) = (own_cache / "text").iterdir()
    for damage in ("train_inputs.npy", "vocabulary.json", "test_users.npy"):
        (folder / damage).write_bytes((folder / damage).read_bytes()[:5])
        assert torch.equal(load("text", path=path).train.inputs, expected)


def test_large_vocabulary_takes_wider_numbers(tmp_path: Path) -> None:
    many = [" ".join(f"w{number}" for number in range(start, start + 1000)) for start in range(0, 33_000, 1000)]
    write(tmp_path / "t.jsonl", {"a": [*many, *many]})
    data = load("text", tmp_path, path="t.jsonl", words=40_000, length=100, holdout=0.4)
    assert data.classes == 33_000 + 4
    assert data.train.inputs.dtype == torch.int32
    assert int(data.train.targets.max()) == data.classes - 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 of .* is not JSON"),
        ("[1]", 'is not {"user": name'),
        ('{"user": 3, "text": []}', "line 2"),
        ('{"user": "x", "text": "hello"}', "line 2"),
        ('{"user": "x", "text": [1]}', "line 2"),
        ('{"user": "ann", "text": ["again"]}', "user 'ann' is on lines 1 and 2"),
    ],
)
def test_bad_lines(tmp_path: Path, own_cache: Path, line: str, message: str) -> None:
    path = write(tmp_path / "t.jsonl", {"ann": USERS["ann"]})
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=message):
        load("text", path=path)
    assert list((own_cache / "text").iterdir()) == []


def test_truncated_missing_and_empty_files(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl.gz", USERS)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"t.jsonl.gz \(\d+ bytes\) is truncated or damaged"):
        load("text", path=path)
    with pytest.raises(DataError, match=r"expected the file absent.jsonl or .*absent.jsonl"):
        load("text", tmp_path, path="absent.jsonl")
    with pytest.raises(DataError, match="no text for the test set"):
        load("text", path=write(tmp_path / "few.jsonl", {"a": ["one"]}))
    with pytest.raises(DataError, match="no text for the train set"):
        load("text", path=write(tmp_path / "none.jsonl", {}))


@pytest.mark.parametrize(
    "options", [{}, {"words": 0}, {"length": 1.5}, {"holdout": 1}, {"users": 0}, {"per_user": True}], ids=str
)
def test_bad_options(tmp_path: Path, options: dict[str, object]) -> None:
    path = write(tmp_path / "t.jsonl", USERS)
    with pytest.raises(OptionError):
        load("text", **({"path": path} | options if options else {}))


def test_full_disk_is_said_before_writing(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedwidth.data.sets import encode

    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(encode.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DataError, match="0 MiB are free"):
        load("text", path=write(tmp_path / "t.jsonl", USERS))
    assert list((own_cache / "text").iterdir()) == []
