"""Where a result comes from: the commit of the source, and the engine that really trained."""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedwidth.errors import FellBack

COMMIT = "FEDWIDTH_COMMIT"
"""Variable that names the commit where the source was copied without its history."""
UNKNOWN = "unknown"


def find_commit(given: str = "", source: Path = Path(__file__).parents[1] / "__init__.py") -> str:
    """The commit of this source: as given, else as `FEDWIDTH_COMMIT` says, else as git knows; else "unknown".

    Source that differs from its commit is marked with a plus: 1a2b3c4+.
    """
    if given or os.environ.get(COMMIT):
        return given or os.environ[COMMIT]
    package = source.resolve().parent
    top = _git(package, "rev-parse", "--show-toplevel")
    # An installed copy may lie in a folder of somebody else's repository.
    if top is None or not _git(package, "ls-files", "--", source.name):
        return UNKNOWN
    commit = _git(package, "rev-parse", "--short=12", "HEAD")
    changed = _git(package, "status", "--porcelain", "--", ".")
    return UNKNOWN if commit is None else commit + ("+" if changed else "")


def _git(folder: Path, *words: str) -> str | None:
    """What git answers; None where there is no git or no repository."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@contextmanager
def note_fallback(said: list[str]) -> Iterator[None]:
    """Add to the list what engines say when they fall back to one client at a time; it is shown as well."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, FellBack):
                said.append(str(message))
            show(message, category, *rest, **more)

        warnings.showwarning = note
        warnings.simplefilter("always", FellBack)  # each run says it, not only the first of a process
        yield
