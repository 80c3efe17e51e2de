"""Files that are written whole or not at all, and by one process at a time: the one place that takes locks."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fedwidth.errors import OptionError, StateError

LOCK = ".lock"
"""The name of the empty file by which a folder is locked."""


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock whose file is at `path`, for as long as the block lasts.

    Where another process or another part of this one holds it: `BlockingIOError`, or with `wait` a wait until it is
    free. The system frees the lock of a process that ends, however it ends, so none is left over. The empty file stays.
    """
    # Where the file system knows no locks there is an error, not a marker file that a killed process leaves behind.
    lock = FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        raise BlockingIOError(errno.EWOULDBLOCK, "it is locked by another process", str(path)) from None
    try:
        yield
    finally:
        lock.release()


def check_writable(*paths: Path) -> None:
    """Refuse files that could not be written later, as far as can be seen without making anything."""
    for path in paths:
        try:
            if path.exists():
                open(path, "ab").close()
                continue
            there = next(parent for parent in path.absolute().parents if parent.exists())
            if not there.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, f"{there} is a file")
            if not os.access(there, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, f"nothing can be written to {there}")
        except OSError as error:
            raise StateError(f"cannot write {path}: {error.strerror or error}") from error


def append_line(path: Path, line: str, *, lock: Path) -> None:
    """Add a line to a file while holding a lock, so that processes that do the same at that time wait for each other.

    A line that a crash cut short is left behind alone: the new one does not go on in the middle of it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, wait=True), open(path, "a+b") as file:
            file.seek(0, os.SEEK_END)
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StateError(f"cannot write {path}: {error.strerror or error}") from error


def make_folder_of(path: Path) -> None:
    """Make the folder that a file is to lie in, and those above it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"cannot write to {path.parent}: {error.strerror or error}") from error


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file so that readers see the old or the new content, also after a crash or on a full disk."""
    data = content.encode() if isinstance(content, str) else content
    if not path.name:  # as of "." and "/"
        raise StateError(f"cannot write {path}: it is a folder; give the name of a file in it")
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        kept = "; the previous one is unharmed" if path.exists() else ""
        raise StateError(f"cannot write {path}: {error.strerror or error}{kept}") from error
