"""Starts Flower's processes of a device as forks of one that has imported Flower already.

A SuperNode starts a SuperExec, and that a ClientApp for every message, each a new Python that imports Flower: three
times 90 MB of the same, and a second or two before every message. Here the process that becomes the SuperNode imports
Flower once, before it has any threads, and starts a *fork server*: a process that does nothing but fork. Whenever
Flower would start one of its programs, the fork server forks and the fork becomes that program. The memory that all of
them have in common is there once, and no app has run in the fork server: what one task leaves behind, the next does not
find.

The fork server ends when the SuperNode does; SuperExec and ClientApps end as they always have, when who started them
is gone. This file is copied into the devices' folders beside `supernode.py`, so it imports the standard library only.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

SUPERNODE, SUPEREXEC, CLIENT_APP = "flower-supernode", "flower-superexec", "flwr-clientapp"
"""The programs of Flower that run on a device, by the names under which they are installed."""
STARTERS = (SUPERNODE, SUPEREXEC)
"""Those that start others."""
THREADS = "OPENBLAS_NUM_THREADS"
"""The environment variable that says how many threads numpy starts when it is imported, for its matrices."""
LOOK_SECONDS = 0.5
"""How often the fork server looks whether the SuperNode is still there."""

Programs = Mapping[str, Callable[[], object]]
"""What each program of Flower calls, by its name."""


def load_programs() -> Programs:
    """Import Flower's programs for a device, as the files that `pip` writes for them do, and start no thread by it."""
    installed = entry_points(group="console_scripts")
    before = os.environ.get(THREADS)
    os.environ[THREADS] = "1"  # numpy's library reads it once
    try:
        return {name: installed[name].load() for name in (SUPERNODE, SUPEREXEC, CLIENT_APP)}
    finally:
        del os.environ[THREADS]
        if before is not None:
            os.environ[THREADS] = before


def start_fork_server(programs: Programs) -> list[str]:
    """Start the fork server; returns what this process is to run, in the SuperNode and in each later fork.

    What the processes have in common stays so: the garbage collector no longer looks at what is there now, because it
    would write to it.
    """
    asked, ask = os.pipe()  # a request is one line, shorter than what a pipe takes in one piece
    gc.collect()
    gc.freeze()
    supernode = os.getpid()
    if os.fork():
        os.close(asked)
        command = [SUPERNODE, *sys.argv[1:]]
    else:
        _name_process("fedwidth-forks")
        command = _next_command(asked, supernode)
    if command[0] in STARTERS:
        _fork_instead(ask, programs)
    else:
        os.close(ask)
    return command


def _next_command(asked: int, supernode: int) -> list[str]:
    """In the fork server: fork for every request until the SuperNode is gone. In a fork: return what it is to run."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a fork has ended
    received = b""
    while os.getppid() == supernode:
        if not select.select([asked], [], [], LOOK_SECONDS)[0]:
            continue
        *lines, received = (received + os.read(asked, select.PIPE_BUF)).split(b"\n")
        for line in lines:
            if os.fork() == 0:
                os.close(asked)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                command: list[str] = json.loads(line)
                _name_process(command[0])
                return command
    os._exit(0)


def _fork_instead(ask: int, programs: Programs) -> None:
    """Have the fork server fork whenever this process would start one of Flower's programs in the plain way."""
    start = subprocess.Popen

    def fork_or_start(command: Any, *more: Any, **options: Any) -> Any:
        plain = isinstance(command, Sequence) and not isinstance(command, str) and not more and not options
        line = json.dumps([*command]).encode() + b"\n" if plain and command[0] in programs else b""
        if not 0 < len(line) <= select.PIPE_BUF:
            return start(command, *more, **options)
        os.write(ask, line)
        return None  # Flower does not look at what it has started

    subprocess.Popen = fork_or_start  # type: ignore[assignment,misc]


def _name_process(name: str) -> None:
    """Give this process the name that lists of processes show, where the system has a file for that."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name[:15])
