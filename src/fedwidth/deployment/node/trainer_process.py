"""Keeps a device's trainer running: a trainer that ends, hangs or takes longer than its task may is replaced.

It is copied into the devices' folders beside `device.py`, so it imports the standard library only.
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
"""How often the trainer is asked whether all is well."""
HUNG_SECONDS = 30.0
"""A trainer that has not answered for so long is stopped, swapped out, or runs code that lets nothing else run."""
START_SECONDS = 180.0
"""How long a new trainer may take to import PyTorch before it must answer."""
WHY = ".why"
"""The ending of the file beside the socket that says why the last trainer was ended."""


class TrainerProcess:
    """The process `python -m fedwidth.deployment.node.trainer`, which is replaced when it no longer answers."""

    def __init__(self, path: str, *, probe_seconds: float = PROBE_SECONDS, hung_seconds: float = HUNG_SECONDS) -> None:
        self.path = path
        self.command = [sys.executable, "-m", "fedwidth.deployment.node.trainer", "--socket", path]
        self.failed: str | None = None
        """Why starting another trainer cannot help; None where it can."""
        self.answered = False
        """Whether the present trainer has answered yet."""
        self._probe_seconds, self._hung_seconds = probe_seconds, hung_seconds
        self._ending = threading.Event()
        self._lock = threading.Lock()
        Path(path + WHY).unlink(missing_ok=True)
        self._start()

    def watch(self) -> None:
        """Watch over the trainer, and replace it where needed, until `end` is called."""
        while not self._ending.wait(self._probe_seconds):
            if (status := self.process.poll()) is not None:
                if not self.answered and status > 0:
                    self.failed = "the trainer could not start: see above"
                    return
                self._replace(f"it ended with status {status}")
            elif (why := self._complaint()) is not None:
                self._replace(why)

    def end(self) -> subprocess.Popen[bytes]:
        """Watch no longer; returns the process, which still runs."""
        self._ending.set()
        with self._lock:
            return self.process

    def _start(self) -> None:
        self.answered, self._started = False, time.monotonic()
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
        """What is wrong with the trainer, as it says itself or because it does not answer; None where nothing is."""
        patience = self._hung_seconds if self.answered else START_SECONDS - (time.monotonic() - self._started)
        try:
            complaint = ask(self.path, max(patience, 1.0))
        except TimeoutError:
            return f"it gave no sign of life for {patience:.0f} seconds"
        except OSError:  # it does not listen yet, or no longer
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
                return None  # its status says more
            return None if patience > 0 and not self.answered else "its socket is gone"
        self.answered = True
        return complaint or None


def ask(path: str, seconds: float) -> str:
    """Ask the trainer at a socket what is wrong, by an empty block; an empty text means that nothing is."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        connection.connect(path)
        connection.sendall(bytes(8))
        block = b""
        with suppress(ConnectionResetError):
            while received := connection.recv(4096):
                block += received
    if len(block) < 8:
        raise ConnectionError("the trainer hung up")
    return block[8:].decode(errors="replace")
