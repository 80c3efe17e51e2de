"""Text by user -> arrays of token numbers, built once and kept on disk.

Two passes over the text: the first counts words (of the training part) and sequences, the second writes the numbers
straight into files. Later loads map these files into memory, so only what is used is read; a vocabulary of 10,000 words
takes two bytes a token.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from fedwidth.data.records import IGNORE, Data, Split
from fedwidth.data.sets.download import cache_folder
from fedwidth.data.sets.progress import progress
from fedwidth.data.sets.vocabulary import OOV, PAD, most_frequent, numbers, sequences
from fedwidth.errors import DataError, OptionError

VERSION = 1  # of the files in the cache; raise it when their content changes
PARTS = ("train", "test")


@dataclass(frozen=True)
class UserText:
    """What one user wrote, as lists of words, for training and for testing."""

    user: str
    train: list[list[str]]
    test: list[list[str]]


Reader = Callable[[], Iterator[UserText]]


@dataclass(frozen=True)
class TextOptions:
    """How text becomes numbers; `source` names the reader and its own options."""

    source: str
    words: int = 10_000
    length: int = 20
    cut: bool = False
    users: int | None = None
    per_user: int | None = None

    def __post_init__(self) -> None:
        for name in ("words", "length", "users", "per_user"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise OptionError(f"{name} must be a whole number of at least 1, not {value!r}")


def encode(name: str, read: Reader, files: Iterable[Path], options: TextOptions) -> Data:
    """The text that `read` yields as Data of kind tokens, from the cache where these files were encoded before.

    `read` is called twice and must yield the same. Users are numbered in the order they first appear.
    """
    folder = cache_folder() / "text" / _key(files, options)
    if not folder.is_dir():
        _build(name, read, folder, options)
    try:
        return _load(name, folder)
    except (OSError, ValueError, KeyError):  # a damaged cache costs time, never the run
        shutil.rmtree(folder, ignore_errors=True)
        _build(name, read, folder, options)
        return _load(name, folder)


def _key(files: Iterable[Path], options: TextOptions) -> str:
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps([VERSION, stats, asdict(options)]).encode()).hexdigest()[:32]


def _build(name: str, read: Reader, folder: Path, options: TextOptions) -> None:
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        _write(name, read, temporary, options)
        try:
            os.replace(temporary, folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, with the same content
                raise
    except OSError as error:
        raise DataError(f"cannot write encoded text to {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(name: str, read: Reader, folder: Path, options: TextOptions) -> None:
    counts: Counter[str] = Counter()
    rows = dict.fromkeys(PARTS, 0)
    users = 0
    with progress(f"{name}: counting words") as advance:
        for text in _limited(read(), options):
            users += 1
            for part, messages in (("train", text.train), ("test", text.test)):
                for message in messages:
                    if part == "train":
                        counts.update(message)
                    rows[part] += len(sequences(range(len(message)), options.length, options.cut))
            advance(users, None)
    for part in PARTS:
        if rows[part] == 0:
            raise DataError(f"data set '{name}' holds no text for the {part} set")
    vocabulary = most_frequent(counts, options.words)
    del counts
    number = numbers(vocabulary)
    dtype = np.int16 if len(vocabulary) <= np.iinfo(np.int16).max else np.int32
    # A mapped file that outgrows the disk kills the process without a word, so look first.
    needed = sum(rows.values()) * (2 * options.length * np.dtype(dtype).itemsize + 4)
    if needed > (free := shutil.disk_usage(folder).free):
        raise DataError(f"encoded text needs {needed >> 20} MiB in {folder.parent}, where {free >> 20} MiB are free")
    arrays = {
        part: (
            _array(folder / f"{part}_inputs.npy", dtype, (rows[part], options.length)),
            _array(folder / f"{part}_targets.npy", dtype, (rows[part], options.length)),
            _array(folder / f"{part}_users.npy", np.int32, (rows[part],)),
        )
        for part in PARTS
    }
    written = dict.fromkeys(PARTS, 0)
    order: dict[str, int] = {}
    with progress(f"{name}: encoding") as advance:
        for done, text in enumerate(_limited(read(), options), 1):
            user = order.setdefault(text.user, len(order))
            for part, messages in (("train", text.train), ("test", text.test)):
                inputs, targets, owners = arrays[part]
                for message in messages:
                    tokens = [number.get(word, OOV) for word in message]
                    for piece in sequences(tokens, options.length, options.cut):
                        row, used = written[part], len(piece) - 1
                        inputs[row, :used], inputs[row, used:] = piece[:-1], PAD
                        targets[row, :used], targets[row, used:] = piece[1:], IGNORE
                        owners[row] = user
                        written[part] += 1
            advance(done, users)
    for part in PARTS:
        for array in arrays[part]:
            array.flush()
    (folder / "vocabulary.json").write_text(json.dumps(vocabulary), encoding="utf-8")


def _limited(texts: Iterable[UserText], options: TextOptions) -> Iterator[UserText]:
    """Only the first users and the first messages of each, where the settings ask for that."""
    if options.users is None and options.per_user is None:
        yield from texts
        return
    seen: set[str] = set()
    for text in texts:
        if options.users is None or text.user in seen or len(seen) < options.users:
            seen.add(text.user)
            yield UserText(text.user, text.train[: options.per_user], text.test[: options.per_user])


def _array(path: Path, dtype: type[np.integer], shape: tuple[int, ...]) -> np.memmap:
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def _load(name: str, folder: Path) -> Data:
    def tensor(file: str) -> torch.Tensor:
        # "c": pages are shared with the file until written to, and torch is content that they could be.
        return torch.from_numpy(np.load(folder / f"{file}.npy", mmap_mode="c", allow_pickle=False))

    train, test = (Split(tensor(f"{p}_inputs"), tensor(f"{p}_targets"), tensor(f"{p}_users")) for p in PARTS)
    vocabulary = tuple(json.loads((folder / "vocabulary.json").read_text(encoding="utf-8")))
    return Data(name, train, test, classes=len(vocabulary), kind="tokens", vocabulary=vocabulary)
