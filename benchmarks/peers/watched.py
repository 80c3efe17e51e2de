"""A script run with a limit on its time, and the most memory that it and all it started held at once."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


class Failed(Exception):
    """The script ended with an error or not in time."""


def run_watched(command: Sequence[str], environment: Mapping[str, str], limit: float) -> float:
    """Run a command and return its peak memory in MB.

    After so many seconds it is killed, with every process it started: Flower's simulation has been seen to hang at 0 %
    of a processor, and it leaves processes of Ray behind.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        peak = Peak(process.pid)
        peak.start()
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"did not end within {limit:g} s") from None
        finally:
            if process.poll() is None:
                kill(family(process.pid))
                process.wait()
            peak.join()
        if code:
            log.seek(0)
            said = log.read().strip().splitlines() or ["it said nothing"]
            raise Failed(f"ended with {code}: {said[-1]}")
    return peak.megabytes


class Peak(threading.Thread):
    """The most memory a process and all it started held at once, looked at once a second; shared pages count once."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.megabytes = pid, 0.0

    def run(self) -> None:
        """Look until the process is gone."""
        while Path(f"/proc/{self.pid}").exists():
            self.megabytes = max(self.megabytes, sum(map(resident, family(self.pid))) / 1024)
            time.sleep(1)


def family(pid: int) -> list[int]:
    """A process and its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            facts = entry.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(facts[1]), []).append(int(entry.parent.name))
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found


def kill(pids: Sequence[int]) -> None:
    """End these processes at once."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def resident(pid: int) -> int:
    """Kilobytes, each page divided by the processes that share it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
