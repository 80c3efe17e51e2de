"""Keeps a device's trainer running: one that ends, hangs or takes longer than its task may is replaced.

Standard library only, and copied into the nodes' folders beside `device.py`.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

PROBE_SECONDS = 5.0
HUNG_SECONDS = 30.0
"""A trainer that has not said a word for so long is stopped, swapped out, or in code that lets nothing else run."""
START_SECONDS = 180.0
"""How long one may take to import PyTorch before it is asked anything."""
WHY = ".why"
"""Ends the name of the file, beside the socket, that says why the last trainer was ended."""


class TrainerProcess:
    """`python -m fedwidth.flower.node.resident`, replaced where it does not answer."""

    def __init__(self, path: str, command: list[str] | None = None) -> None:
        self.path = path
        self.command = command or [sys.executable, "-m", "fedwidth.flower.node.resident", "--socket", path]
        self.failed: str | None = None
        """Why starting another one cannot help."""
        self._ending = threading.Event()
        self._lock = threading.Lock()
        Path(path + WHY).unlink(missing_ok=True)
        self._start()

    def keep(self) -> None:
        """Watch over it until it is ended."""
        while not self._ending.wait(PROBE_SECONDS):
            if (status := self.process.poll()) is not None:
                if not self._answered and status > 0:
                    self.failed = "the trainer could not start: see above"
                    return
                self._replace(f"it ended with status {status}")
            elif (why := self._complaint()) is not None:
                self._replace(why)

    def end(self) -> subprocess.Popen[bytes]:
        """The process, no longer watched."""
        self._ending.set()
        with self._lock:
            return self.process

    def _start(self) -> None:
        self._answered, self._started = False, time.monotonic()
        self.process = subprocess.Popen(self.command)

    def _replace(self, why: str) -> None:
        with self._lock:
            if self._ending.is_set():
                return
            print(f"the trainer is started again: {why}", flush=True)
            Path(self.path + WHY).write_text(why)  # for the task that waits for its answer
            self.process.kill()
            self.process.wait()
            self._start()

    def _complaint(self) -> str | None:
        """What is wrong with it, by its own account or because it gives none; None where nothing is."""
        patience = HUNG_SECONDS if self._answered else START_SECONDS - (time.monotonic() - self._started)
        try:
            said = ask(self.path, max(patience, 1.0))
        except TimeoutError:
            return f"it gave no sign of life for {patience:.0f} seconds"
        except OSError:  # it does not listen yet, or no longer
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
                return None  # its status says more
            return None if patience > 0 and not self._answered else "its socket is gone"
        self._answered = True
        return said or None


def ask(path: str, seconds: float) -> str:
    """What the trainer at this socket has to complain of, empty where nothing; an empty block asks for it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        connection.connect(path)
        connection.sendall(bytes(8))
        said = b""
        with suppress(ConnectionResetError):
            while part := connection.recv(4096):
                said += part
    if len(said) < 8:
        raise ConnectionError("the trainer hung up")
    return said[8:].decode(errors="replace")
