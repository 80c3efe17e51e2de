"""A device's trainer and its connection to the server: `python device.py …`, what `start.sh` calls.

The command line is that of `flower-supernode`. A connection that is lost is tried again, for ever; what trying again
cannot heal (a key the server does not know, a certificate that has expired) ends it with the reason in one line. A
SuperNode or a trainer that hangs is killed and started again. SIGTERM ends all of it within seconds.

Standard library only, and copied into the nodes' folders: importing fedwidth brings in PyTorch, and a device needs its
memory for the trainer.
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
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType

if __package__:
    from fedwidth.flower.node.reasons import distrust, is_refusal, reachable, why_final
    from fedwidth.flower.node.trainer_process import TrainerProcess
else:  # in a node's folder, where importing fedwidth would bring in PyTorch
    from reasons import distrust, is_refusal, reachable, why_final  # type: ignore[import-not-found,no-redef]
    from trainer_process import TrainerProcess  # type: ignore[import-not-found,no-redef]

FLOWERS = ("1.41", "1.42")
"""The minor versions of Flower whose words are read here, and with which deployments are tested."""
SOCKET = "trainer.sock"
PAUSE_SECONDS = 10.0
SILENT_SECONDS = 90.0
"""Three heartbeats of a SuperNode: one that has heard nothing for so long from a server that can be reached hangs."""
END_SECONDS = 5.0
PULSE = "FEDWIDTH_PULSE"
REFUSED_SECONDS = 100.0
"""The server refuses a node that was cut off for up to 60 seconds, in the same words as one it does not know."""


def why_not_flower() -> str | None:
    """Why deployments cannot use the Flower that is installed, or None where they can."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        return "flwr is not installed; pip install 'fedwidth[flower]'"
    if f"{found}.".startswith(tuple(f"{flower}." for flower in FLOWERS)):
        return None
    return (
        f"flwr {found} is installed, but fedwidth's deployments were made for flwr {FLOWERS[0]} to {FLOWERS[-1]} and"
        f" use parts of it that change between versions; pip install 'flwr=={FLOWERS[-1]}.*'"
    )


class Node:
    """One SuperNode, its output passed on."""

    def __init__(self, words: list[str]) -> None:
        self.connected = False
        self.heard = time.monotonic()
        """When the server last answered it."""
        self._last: deque[str] = deque(maxlen=30)
        command = [sys.executable, str(Path(__file__).with_name("supernode.py")), *words]
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
        # Processes it started hold the pipe open after its end, so that is not what is waited for.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._feel, args=[pulse], daemon=True).start()

    def is_silent(self, superlink: str, authority: str) -> bool:
        """Whether it hears nothing from a server that can be reached."""
        if time.monotonic() - self.heard < SILENT_SECONDS:
            return False
        if reachable(superlink, authority):
            return True
        self.heard = time.monotonic()  # nobody could hear anything
        return False

    def last_words(self) -> str:
        """What it said before it ended."""
        self._reader.join(timeout=2.0)
        return "".join(self._last)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                print(line, end="", flush=True)
                self._last.append(line)
                self.connected |= "SuperNode ID:" in line

    def _feel(self, pulse: int) -> None:
        with open(pulse, "rb", buffering=0) as beats:
            while beats.read(1024):
                self.heard = time.monotonic()


def stay_connected(words: list[str], superlink: str, authority: str, trainer: TrainerProcess) -> str:
    """Keep a SuperNode running until that cannot help; why it cannot."""
    refused: float | None = None
    while True:
        if (reason := distrust(superlink, authority)) is not None:
            return reason
        node = Node(words)
        try:
            while node.process.poll() is None and trainer.failed is None:
                if node.is_silent(superlink, authority):
                    print(f"the SuperNode heard nothing for {SILENT_SECONDS:.0f} s; it is started again", flush=True)
                    node.process.kill()
                    node.process.wait()
                time.sleep(0.5)
        finally:
            end(node.process)
        if trainer.failed is not None:
            return trainer.failed
        said = node.last_words()
        if (reason := why_final(said)) is not None:
            return reason
        if node.connected:
            refused = None
        elif is_refusal(said):
            if refused is None:
                print(f"the server does not let this device in; trying again for {REFUSED_SECONDS:.0f} s", flush=True)
                refused = time.monotonic()
            if time.monotonic() - refused > REFUSED_SECONDS:
                return (
                    f"the server at {superlink} has refused this device for {REFUSED_SECONDS:.0f} s: its key is not"
                    " registered (./register.sh on the server), another device is connected with it, or this device's"
                    f" clock is wrong ({time.strftime('%Y-%m-%d %H:%M %Z')})"
                )
        time.sleep(PAUSE_SECONDS)


def end(*processes: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Ask the processes to end, and after a while make them."""
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
    """Run until stopped."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--superlink", required=True)
    parser.add_argument("--root-certificates", required=True)
    words = sys.argv[1:]
    known, _ = parser.parse_known_args(words)
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
    threading.Thread(target=trainer.keep, daemon=True).start()
    try:
        why = stay_connected(words, known.superlink, known.root_certificates, trainer)
    finally:
        end(trainer.end())
    raise SystemExit(f"error: {why}")


if __name__ == "__main__":
    main()
