"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fedwidth.errors import StateError


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file so that readers see the old or the new content, also after a crash or on a full disk."""
    data = content.encode() if isinstance(content, str) else content
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
