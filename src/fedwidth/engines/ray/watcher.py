"""A small process that says why a run is over whose raylet was killed.

Ray ends the process that started it at once when the process it runs on that machine, the raylet, is gone, without an
exception that could be caught. So another process watches both and says in one line what became of them.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys

ENDED = (
    "Ray's process on this machine, the raylet, has ended (killed, or out of memory), and the run with it; --resume"
    " goes on after the last round that was saved"
)


def start_watcher(raylet: int) -> subprocess.Popen[bytes] | None:
    """Start the process that watches the raylet with this number; None where the system cannot watch processes."""
    if not hasattr(os, "pidfd_open"):
        return None
    # In a session of its own: what ends the run, Ctrl-C say, must not end it before it has seen what happened.
    command = [sys.executable, "-I", "-S", __file__, str(raylet)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def stop_watcher(watcher: subprocess.Popen[bytes]) -> None:
    """End the watching process, before the raylet is ended on purpose."""
    watcher.kill()
    watcher.wait()
    if watcher.stdin is not None:
        watcher.stdin.close()


def main() -> None:
    """Wait until the raylet ends, which is said, or the run, which holds the other end of the standard input."""
    try:
        raylet = os.pidfd_open(int(sys.argv[1]))
    except ProcessLookupError:
        raylet = -1
    ended = raylet < 0 or raylet in select.select([raylet, sys.stdin], [], [])[0]
    if ended:
        print(f"error: {ENDED}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
