"""Keeps a device's SuperNode and its trainer running: `python device.py …`, which `start.sh` calls.

The command line is that of `flower-supernode`, and `--only-when "hours=22-6 charging wifi"` (`conditions`). A
SuperNode that loses its connection is started again, for ever. Where that cannot help (a key that the server does not
know, a certificate that has expired), the device ends with the reason in one line. A SuperNode or a trainer that hangs
is killed and started again. SIGTERM ends both within seconds.

This file is copied into the devices' folders and imports the standard library only: importing fedwidth would bring in
PyTorch, and a device needs its memory for the trainer.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType

if __package__:
    from fedwidth.deployment.node.conditions import Conditions
    from fedwidth.deployment.node.connection import is_reachable, is_refusal, why_distrusted, why_final
    from fedwidth.deployment.node.trainer_process import TrainerProcess
else:  # in a device's folder, where importing fedwidth would bring in PyTorch
    from conditions import Conditions  # type: ignore[import-not-found,no-redef]
    from connection import is_reachable, is_refusal, why_distrusted, why_final  # type: ignore[import-not-found,no-redef]
    from trainer_process import TrainerProcess  # type: ignore[import-not-found,no-redef]

FLOWERS = ("1.41", "1.42")
"""The minor versions of Flower whose output is read here, and with which deployments are tested."""
SOCKET = "trainer.sock"
"""The socket at which the trainer listens, in the device's folder."""
PAUSE_SECONDS = 10.0
"""How long to wait before a SuperNode is started again."""
SILENT_SECONDS = 90.0
"""Three heartbeats of a SuperNode: one that has had no answer for so long from a server that is reachable hangs."""
END_SECONDS = 5.0
"""How long processes that were asked to end have before they are killed."""
PULSE = "FEDWIDTH_PULSE"
"""The environment variable that names the pipe into which a SuperNode writes whenever the server has answered it."""
REFUSED_SECONDS = 100.0
"""How long refusals are borne: for up to 60 seconds the server also refuses a known device that was cut off."""


def why_not_flower(found: str | None = None) -> str | None:
    """Why deployments cannot use this version of Flower, by default the one that is installed; None where they can."""
    try:
        found = found or version("flwr")
    except PackageNotFoundError:
        return "flwr is not installed; pip install 'fedwidth[flower]'"
    if f"{found}.".startswith(tuple(f"{flower}." for flower in FLOWERS)):
        return None
    return (
        f"flwr {found} is installed, but fedwidth's deployments were made for flwr {FLOWERS[0]} to {FLOWERS[-1]} and"
        f" use parts of it that change between versions; pip install 'flwr=={FLOWERS[-1]}.*'"
    )


class SuperNodeProcess:
    """One SuperNode, whose output is passed on and whose answers from the server are noticed."""

    def __init__(self, arguments: list[str], silent_seconds: float = SILENT_SECONDS) -> None:
        self.connected = False
        """Whether the server has let it in."""
        self.answered = time.monotonic()
        """When the server last answered it."""
        self.silent_seconds = silent_seconds
        self._last: deque[str] = deque(maxlen=30)
        """The last lines of its output."""
        command = [sys.executable, str(Path(__file__).with_name("supernode.py")), *arguments]
        pulse, theirs = os.pipe()
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=[theirs],
            env={**os.environ, PULSE: str(theirs)},
        )
        os.close(theirs)
        # Processes that it started hold its output open after its end, so the end of output is not waited for.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._read_pulse, args=[pulse], daemon=True).start()

    def is_silent(self, superlink: str, authority: str) -> bool:
        """Whether it has had no answer for long, although the server is reachable."""
        if time.monotonic() - self.answered < self.silent_seconds:
            return False
        if is_reachable(superlink, authority):
            return True
        self.answered = time.monotonic()  # nobody has had an answer
        return False

    def last_output(self) -> str:
        """The last lines of its output."""
        self._reader.join(timeout=2.0)
        return "".join(self._last)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                print(line, end="", flush=True)
                self._last.append(line)
                self.connected |= "SuperNode ID:" in line

    def _read_pulse(self, pulse: int) -> None:
        with open(pulse, "rb", buffering=0) as beats:
            while beats.read(1024):
                self.answered = time.monotonic()


def stay_connected(
    arguments: list[str],
    superlink: str,
    authority: str,
    trainer: TrainerProcess,
    *,
    start: Callable[[list[str]], SuperNodeProcess] = SuperNodeProcess,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    why_not: Callable[[], str | None] = lambda: None,
) -> str:
    """Keep a SuperNode running for as long as that can help; returns why it cannot any more.

    `start` starts a SuperNode with the arguments; `sleep` waits before the next is started; `why_not` says why the
    device takes no part now, where its owner has conditions.
    """
    refused: float | None = None
    waited = ""
    while True:
        if (pause := why_not()) is not None:
            if pause != waited:
                print(f"this device takes no part: {pause}", flush=True)
            waited = pause
            sleep(PAUSE_SECONDS)
            continue
        waited = ""
        if (reason := why_distrusted(superlink, authority)) is not None:
            return reason
        supernode = start(arguments)
        try:
            while supernode.process.poll() is None and trainer.failed is None:
                if supernode.is_silent(superlink, authority):
                    silent = supernode.silent_seconds
                    print(f"the SuperNode heard nothing for {silent:.0f} s; it is started again", flush=True)
                    supernode.process.kill()
                    supernode.process.wait()
                if why_not() is not None:  # said above; the server notices that the device is gone
                    break
                time.sleep(0.5)
        finally:
            end(supernode.process)
        if trainer.failed is not None:
            return trainer.failed
        output = supernode.last_output()
        if (reason := why_final(output)) is not None:
            return reason
        if supernode.connected:
            refused = None
        elif is_refusal(output):
            if refused is None:
                print(f"the server does not let this device in; trying again for {REFUSED_SECONDS:.0f} s", flush=True)
                refused = clock()
            if clock() - refused > REFUSED_SECONDS:
                return (
                    f"the server at {superlink} has refused this device for {REFUSED_SECONDS:.0f} s: its key is not"
                    " registered (./register.sh on the server), another device is connected with it, or this device's"
                    f" clock is wrong ({time.strftime('%Y-%m-%d %H:%M %Z')})"
                )
        sleep(PAUSE_SECONDS)


def end(*processes: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Ask processes to end, and kill those that have not ended after a while."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + END_SECONDS
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """Keep the device connected until it is stopped, or cannot be."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--superlink", required=True)
    parser.add_argument("--root-certificates", required=True)
    known, _ = parser.parse_known_args(sys.argv[1:])
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--only-when", default="")
    stated, arguments = own.parse_known_args(sys.argv[1:])
    try:
        conditions = Conditions.parse(stated.only_when)
    except ValueError as error:
        raise SystemExit(f"error: --only-when: {error}") from None
    if (reason := why_not_flower()) is not None:
        raise SystemExit(f"error: {reason}")

    def stop(_signal: int, _frame: FrameType | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # once is enough: a second one would cut the ending short
        raise SystemExit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    os.environ["PYTHONUNBUFFERED"] = "1"
    trainer = TrainerProcess(SOCKET)
    threading.Thread(target=trainer.watch, daemon=True).start()
    try:
        why = stay_connected(arguments, known.superlink, known.root_certificates, trainer, why_not=conditions.why_not)
    finally:
        end(trainer.end())
    raise SystemExit(f"error: {why}")


if __name__ == "__main__":
    main()
