"""The resident trainer, a process that stays up: `python -m fedwidth.deployment.node.trainer --socket PATH`.

Flower starts a process for every message, and a process that imports torch, builds the model and loads the data takes
seconds before it trains. This process does all that once, and answers blocks of bytes (`wire.py`) on a Unix socket that
only its owner can open. It trains one task at a time, in the main thread, because a device has one training to do.
Meanwhile it answers an empty block at once with what is wrong: nothing, or that the present task takes longer than it
may. Where the recipe has secure sums, the device's part in them, with its secrets, is in this process alone.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fedwidth.deployment.node.wire import INTRODUCE, SECURE, TRAIN, Raw, pack, receive, send, unpack
from fedwidth.errors import OptionError

if TYPE_CHECKING:
    from fedwidth.deployment.node.secure_sums import SecureSums

MAX_PATH = 100
"""Characters that the path of a Unix socket may have on every system."""


def listen(path: Path) -> socket.socket:
    """A listening socket at this path, for its owner only; replaces a socket that is left over, but none in use."""
    if len(str(path)) > MAX_PATH:
        raise OptionError(f"the socket's path has {len(str(path))} characters, at most {MAX_PATH} are possible")
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise OptionError(f"another trainer listens at {path}")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)  # so that there is no moment at which others may connect
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise OptionError(f"cannot listen at {path}: {error.strerror or error}") from None
    finally:
        os.umask(before)
    listener.listen()
    return listener


@dataclass
class Resident:
    """What the trainer answers: tasks and, where the recipe has secure sums, the messages of their protocol."""

    key: Path = Path("key")
    """The file of the device's private key."""

    @cached_property
    def secure_sums(self) -> SecureSums:
        """The device's part in secure sums."""
        from fedwidth.deployment.node.secure_sums import SecureSums

        return SecureSums(self.key)

    def answer(self, block: bytes) -> bytes:
        """Do what a block asks for; returns the block of the answer, which holds the error where there was one."""
        facts: Mapping[str, Any]
        tensors: Mapping[str, Raw]
        try:
            facts, tensors = self._do(*unpack(block))
        except Exception as error:  # a task may come with anything, and the next one must find the trainer up
            facts, tensors = {"error": f"{type(error).__name__}: {error}"}, {}
        return pack(facts, tensors)

    def _do(self, facts: dict[str, Any], tensors: dict[str, Raw]) -> tuple[Mapping[str, Any], Mapping[str, Raw]]:
        from fedwidth.deployment.node.training import is_secure, train_here

        stage = facts.get("stage", TRAIN)
        if stage == INTRODUCE:
            return self.secure_sums.introduce(facts), {}
        if stage == SECURE:
            return self.secure_sums.answer(facts, tensors)
        # The recipe says so, which the operator has signed, and not the server.
        return self.secure_sums.train(facts, tensors) if is_secure(facts["recipe"]) else train_here(facts, tensors)


@dataclass
class TaskQueue:
    """The tasks that wait to be trained, and the deadline of the task that is trained now."""

    waiting: queue.Queue[tuple[socket.socket, bytes]] = field(default_factory=queue.Queue)
    deadline: float | None = None
    """The moment by which the present task should have ended; None where there is no task."""
    seconds: float = 0.0
    """How long the present task may take."""

    def begin(self, block: bytes) -> None:
        """Set the deadline of a block's task, which begins now."""
        with suppress(ValueError, KeyError, TypeError):
            self.seconds = float(unpack(block)[0]["seconds"])
            self.deadline = time.monotonic() + self.seconds

    def complaint(self) -> str:
        """That the present task takes too long, in words; empty where it does not."""
        late = self.deadline is not None and time.monotonic() > self.deadline
        return f"its task has taken more than {self.seconds:g} seconds" if late else ""


def serve(listener: socket.socket, parent: int | None = None, resident: Resident | None = None) -> None:
    """Train one task after the other, until the process that started this one is gone."""
    tasks, parent, resident = TaskQueue(), parent or os.getppid(), resident or Resident()
    threading.Thread(target=_accept, args=[listener, tasks], daemon=True).start()
    while os.getppid() == parent:
        try:
            connection, block = tasks.waiting.get(timeout=2.0)
        except queue.Empty:
            continue
        tasks.begin(block)
        # A ClientApp that was killed takes no answer.
        with connection, suppress(OSError):
            send(connection, resident.answer(block))
        tasks.deadline = None


def _accept(listener: socket.socket, tasks: TaskQueue) -> None:
    """Take in every connection, each in a thread of its own."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # it is closed
            return
        threading.Thread(target=_receive, args=[connection, tasks], daemon=True).start()


def _receive(connection: socket.socket, tasks: TaskQueue) -> None:
    """Put a connection's task into the queue, or answer its question whether all is well."""
    try:
        block = receive(connection)
        if block:
            tasks.waiting.put((connection, block))
            return
        send(connection, tasks.complaint().encode())
    except (OSError, EOFError, ValueError):  # a ClientApp that was killed leaves half a block
        pass
    connection.close()


def main() -> None:
    """Listen and train until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m fedwidth.deployment.node.trainer", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="path of the unix socket")
    parser.add_argument("--key", type=Path, default=Path("key"), help="the device's private key, for secure sums")
    given = parser.parse_args()
    path: Path = given.socket
    parent = os.getppid()
    try:
        listener = listen(path)
    except OptionError as error:
        raise SystemExit(f"error: {error}") from None

    def stop(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough: a second one would cut the ending short
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)
    import_module("fedwidth.deployment.node.training")  # the first task should not wait for torch

    print(f"trainer listens at {path}", flush=True)
    with listener, suppress(KeyboardInterrupt):
        try:
            serve(listener, parent, Resident(given.key))
        finally:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
