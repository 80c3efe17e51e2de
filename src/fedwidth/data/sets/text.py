"""Text by user from JSON lines, plain or compressed with gzip: {"user": name, "text": [message, …]} on each line."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, cast

from fedwidth.data.records import Data
from fedwidth.data.sets.download import search_folders
from fedwidth.data.sets.encode import TextOptions, UserText, encode
from fedwidth.data.sets.vocabulary import split_words
from fedwidth.errors import DataError, OptionError


def load_text(
    root: str | Path | None = None,
    *,
    path: str | Path | None = None,
    words: int = 10_000,
    length: int = 20,
    holdout: float = 0.2,
    cut: bool = False,
    users: int | None = None,
    per_user: int | None = None,
) -> Data:
    """Next-word prediction on text by user.

    The last `holdout` share of each user's messages, rounded down, is that user's test text: a user with few messages
    has none. The vocabulary is counted on the training text. A message longer than `length` goes on in the next
    sequence, or is cut with `cut=True`. `users` and `per_user` take only the first users and their first messages.
    """
    if not isinstance(holdout, int | float) or not 0 < holdout < 1:
        raise OptionError(f"holdout must lie between 0 and 1, not {holdout!r}")
    file = _find(path, search_folders(root))
    if per_user is not None and (type(per_user) is not int or per_user < 1):
        raise OptionError(f"per_user must be a whole number of at least 1, not {per_user!r}")
    # The cap comes before holding out, so that both parts stay in proportion; the encoder need not cap again.
    source = f"json lines, holdout {holdout!r}, per user {per_user!r}"
    options = TextOptions(source, words=words, length=length, cut=cut, users=users)
    return encode("text", lambda: read_lines(file, holdout, per_user), [file], options)


def read_lines(path: Path, holdout: float, per_user: int | None = None) -> Iterator[UserText]:
    """Each user's messages as words, the last ones held out; messages without a word are left out."""
    lines: dict[str, int] = {}
    try:
        with _open(path) as stream:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                user, messages = _parse(path, number, line)
                if user in lines:
                    both = f"{lines[user]} and {number}"
                    raise DataError(f"{path}: user {user!r} is on lines {both}; put all messages of a user on one line")
                lines[user] = number
                texts = [words for message in messages if (words := split_words(message))][:per_user]
                kept = len(texts) - math.floor(len(texts) * holdout)
                yield UserText(user, texts[:kept], texts[kept:])
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise DataError(f"{path} ({path.stat().st_size} bytes) is truncated or damaged: {error}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8"))
    return path.open(encoding="utf-8")


def _parse(path: Path, number: int, line: str) -> tuple[str, list[str]]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"line {number} of {path} is not JSON: {error}") from None
    user, messages = (record.get("user"), record.get("text")) if isinstance(record, dict) else (None, None)
    if not isinstance(user, str) or not isinstance(messages, list) or not all(isinstance(m, str) for m in messages):
        raise DataError(f'line {number} of {path} is not {{"user": name, "text": [message, …]}}')
    return user, messages


def _find(path: str | Path | None, folders: tuple[Path, ...]) -> Path:
    if path is None:
        raise OptionError("data set 'text' needs the option path: a file of JSON lines, .jsonl or .jsonl.gz")
    candidates = [folder / Path(path).expanduser() for folder in (Path(), *folders)]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    where = " or ".join(dict.fromkeys(str(candidate) for candidate in candidates))
    raise DataError(f"data set 'text' not found: expected the file {where}")
