"""What the server's guard tells the audit log: when it ran, who commanded it by which key, and whom it refused."""

from __future__ import annotations

import base64
import hashlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import FrameType
from typing import Any

from fedwidth.watching.audit import AuditLog, fingerprint

COMMANDS = {
    "start-run": "run started",
    "stop-run": "run stopped",
    "register-node": "device registered",
    "unregister-node": "device unregistered",
}
"""The requests of operators that change something, by the end of their path, and what the log calls them."""
AGAIN_SECONDS = 3600.0
"""How long nothing more is said about a stranger who was refused: the log must not grow by knocking."""
MAX_STRANGERS = 1000
"""Different strangers of whom the log speaks within that time."""


@dataclass
class AuditTrail:
    """Writes what the guard decides into the audit log; None: nothing is written."""

    log: AuditLog | None
    clock: Callable[[], float] = time.monotonic
    _said: dict[str, float] = field(default_factory=dict)

    def commanded(self, key: Any, path: str) -> None:
        """An operator has made a request that was taken."""
        name = PurePosixPath(path).name
        if name in COMMANDS:
            self._note(COMMANDS[name], by=_fingerprint_of(key))

    def refused_device(self, keys: Sequence[bytes]) -> None:
        """A device that is not enrolled has knocked."""
        shown = "none" if len(keys) != 1 else f"SHA256:{_digest(keys[0])}"
        if self._is_new(f"device {shown}"):
            self._note("refused", key=shown, why="this device is not enrolled")

    def refused_command(self, path: str, why: str) -> None:
        """Somebody has asked for what only operators may."""
        if self._is_new(f"command {path} {why}"):
            self._note("refused", command=path[:200], why=why)

    def _is_new(self, what: str) -> bool:
        now = self.clock()
        self._said = {said: until for said, until in self._said.items() if until > now}
        if what in self._said or len(self._said) >= MAX_STRANGERS:
            return False
        self._said[what] = now + AGAIN_SECONDS
        return True

    def _note(self, event: str, **facts: Any) -> None:
        if self.log is not None:
            self.log.note_or_say(print, event, **facts)


@contextmanager
def running(log: AuditLog) -> Iterator[None]:
    """Note that the server was started, and that it ended, by SIGTERM too: uvicorn ends the process by that itself."""
    log.note("server started")

    def stop(number: int, _frame: FrameType | None) -> None:
        log.note_or_say(print, "server stopped")
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        log.note_or_say(print, "server stopped")


def _fingerprint_of(key: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return fingerprint(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode())


def _digest(key: bytes) -> str:
    """Of a device's key as its request carries it (PEM in base 64), which need not be one at all."""
    with suppress(ValueError):
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

        found = load_pem_public_key(base64.b64decode(key))
        line = found.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        return fingerprint(line).removeprefix("SHA256:")
    return base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")
