"""Stopping a command that trains: the round is finished and saved first."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signal() -> Iterator[Callable[[], bool]]:
    """Ctrl-C or a termination signal lets the round finish; a second Ctrl-C stops at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        del number, frame
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("\nfinishing this round and saving; press Ctrl-C again to stop at once", file=sys.stderr)

    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, ask)
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
