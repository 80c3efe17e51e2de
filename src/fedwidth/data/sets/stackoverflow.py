"""Stack Overflow by user, in the HDF5 layout of TensorFlow Federated: examples/<client>/tokens, one text a sentence.

The training file holds 342,477 users up to 2017, the test file what 204,088 users wrote later. A user in both has one
number; users of the test file alone are tested by the global model only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedwidth.data.records import Data
from fedwidth.data.sets.download import Remote, fetch, missing, search_folders, unpack
from fedwidth.data.sets.encode import TextOptions, UserText, encode
from fedwidth.errors import DataError

URL = "https://storage.googleapis.com/tff-datasets-public/"
ARCHIVE = Remote("stackoverflow.tar.bz2", sha256="99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2")
FILES = ("stackoverflow_train.h5", "stackoverflow_test.h5")
FOLDERS = ("stackoverflow", ".")


def load_stackoverflow(
    root: str | Path | None = None,
    *,
    download: bool = True,
    base_url: str | None = None,
    words: int = 10_000,
    length: int = 20,
    users: int | None = None,
    per_user: int | None = None,
) -> Data:
    """Next-word prediction on Stack Overflow: sentences cut after `length` words, the given training and test files.

    `users` takes the first users of the training file only, `per_user` the first sentences of each user in each file.
    """
    try:
        import h5py  # noqa: F401
    except ImportError:
        raise DataError("Stack Overflow is stored as HDF5, which needs h5py: install fedwidth[hdf5]") from None
    options = TextOptions("stackoverflow", words=words, length=length, cut=True, users=users, per_user=per_user)
    found = search_folders(root)
    folder = _find(found)
    if folder is None:
        names = tuple(f"stackoverflow/{name}" for name in FILES)
        if not download:
            raise missing("stackoverflow", found, names, "and download is off")
        folder = found[0] / "stackoverflow"
        try:
            archive = fetch(ARCHIVE, base_url or URL, folder)
            try:
                unpack(archive, folder, dict.fromkeys(FILES))
            finally:
                archive.unlink(missing_ok=True)
        except DataError as error:
            raise missing("stackoverflow", found, names, str(error)) from None
    train, test = (folder / name for name in FILES)
    return encode("stackoverflow", lambda: read_files(train, test), [train, test], options)


def read_files(train: Path, test: Path) -> Iterator[UserText]:
    """The users of the training file with their training text, then those of the test file with their test text."""
    for user, sentences in _read(train):
        yield UserText(user, sentences, [])
    for user, sentences in _read(test):
        yield UserText(user, [], sentences)


def _read(path: Path) -> Iterator[tuple[str, list[list[str]]]]:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            if "examples" not in file:
                raise DataError(f"{path} has no group 'examples'")
            examples = file["examples"]
            for user in examples:
                group = examples[user]
                if not isinstance(group, h5py.Group) or "tokens" not in group:
                    raise DataError(f"{path}: examples/{user} has no 'tokens'")
                texts = (text.decode("utf-8", "replace") for text in group["tokens"][()])
                yield user, [words for text in texts if (words := text.split())]
    except OSError as error:
        raise DataError(f"{path} ({path.stat().st_size} bytes) is truncated or damaged: {error}") from None


def _find(folders: tuple[Path, ...]) -> Path | None:
    for base in folders:
        for folder in FOLDERS:
            if all((base / folder / name).is_file() for name in FILES):
                return base / folder
    return None
