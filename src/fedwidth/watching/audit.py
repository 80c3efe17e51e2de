"""The audit log of a deployment: who was let in, joined and was refused, what each round took, and who commanded it.

    audit.jsonl    {"time": "2026-11-17T03:04:05Z", "event": "enrolled", "client": 3, "key": "SHA256:…", "by": "…", …}

It is only ever appended to, one line of JSON for each event. Every line holds the digest of the line before it, so a
line that is changed or taken out later breaks the chain where it was (`check`); whoever can write the file can of
course write a whole new one, so the last digest is worth keeping elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedwidth.errors import OptionError, StateError
from fedwidth.files import locked

NAME = "audit.jsonl"
MAX_TEXT = 500
"""Characters of a text in the log; longer ones are cut."""


@dataclass(frozen=True)
class AuditLog:
    """The log of one deployment."""

    path: Path
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def note(self, event: str, **facts: Any) -> None:
        """Append an event; facts that are None are left out. The line is on disk when this returns."""
        line: dict[str, Any] = {"time": f"{self.clock():%Y-%m-%dT%H:%M:%SZ}", "event": event}
        line |= {name: _short(value) for name, value in facts.items() if value is not None}
        try:
            with locked(self.path.with_name(f".{self.path.name}.lock"), wait=True):
                line["previous"] = digest(_last_line(self.path))
                with open(self.path, "ab", opener=_for_its_owner) as file:
                    file.write(json.dumps(line, ensure_ascii=True).encode() + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise StateError(f"cannot write {self.path}: {error.strerror or error}") from error

    def note_or_say(self, say: Callable[[str], None], event: str, **facts: Any) -> None:
        """Append an event, and where that fails say so and go on: a full disk must not keep devices out."""
        try:
            self.note(event, **facts)
        except StateError as error:
            say(f"error: {error}")

    def lines(self) -> Iterator[dict[str, Any]]:
        """Every event, the oldest first; what is no line of a log is left out."""
        with suppress(FileNotFoundError):
            for text in self.path.read_text(errors="replace").splitlines():
                with suppress(ValueError):
                    found = json.loads(text)
                    if isinstance(found, dict) and isinstance(found.get("event"), str):
                        yield found

    def check(self) -> int:
        """How many lines the log has; `OptionError` names the first that is not what was written."""
        before, number = b"", 0
        for number, text in enumerate(self.path.read_bytes().splitlines() if self.path.exists() else [], start=1):
            try:
                line = json.loads(text)
                known = line["previous"] == digest(before)
            except (ValueError, KeyError, TypeError):
                known = False
            if not known:
                raise OptionError(f"{self.path}: line {number} does not follow the one before it: the log was changed")
            before = text
        return number


def digest(line: bytes) -> str:
    """What the next line says of this one.

    >>> digest(b"")
    ''
    >>> len(digest(b"{}"))
    64
    """
    return hashlib.sha256(line).hexdigest() if line else ""


def fingerprint(public_key: str) -> str:
    """A public key as people compare it, as `ssh-keygen -l` prints it.

    >>> fingerprint("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEVsIdF1NhcoJoGNFoXDnJ2NgFxKc0gTmV8PMzJhMnLl me")[:7]
    'SHA256:'
    """
    try:
        raw = base64.b64decode(public_key.split()[1], validate=True)
    except (IndexError, ValueError):
        return "unknown"
    return "SHA256:" + base64.b64encode(hashlib.sha256(raw).digest()).decode().rstrip("=")


def operator_of(folder: Path) -> str:
    """The fingerprint of the operator's key in a deployment's folder, where it is; else "unknown"."""
    try:
        return fingerprint((folder / "operator" / "key.pub").read_text())
    except OSError:
        return "unknown"


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _last_line(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - (1 << 16)))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return b""
    return lines[-1] if lines else b""


def _short(value: Any) -> Any:
    return value[:MAX_TEXT] if isinstance(value, str) else value
