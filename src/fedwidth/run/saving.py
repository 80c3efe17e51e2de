"""When a run is saved, and how: by time beside the training, or every so many rounds while it waits.

    round n ends      its line is added to metrics.jsonl, where who reads the file sees it
    a save is due     the server is copied to the CPU at once: these are the bits of round n
    beside rounds n+1, n+2 …    the lines are made to last, then the copy replaces the checkpoint

So the metrics are never behind the checkpoint, and a kill at any moment leaves a whole one. What a save failed with is
raised in the run's own thread, after the round in which it failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedwidth.run import checkpoint
from fedwidth.run import checkpoint_history as history
from fedwidth.run.checkpoint import Copy
from fedwidth.run.folder import Metrics
from fedwidth.settings import Settings

_TURN = threading.Lock()
"""Held while a run is written: packed runs are due together, and training shares the interpreter with them."""


class Saver:
    """Writes the metrics and checkpoints of one run; the caller holds the folder's lock until `check(wait=True)`."""

    def __init__(self, folder: Path, settings: Settings, *, rounds: int) -> None:
        self.folder, self._metrics = folder, Metrics(folder, rounds=rounds)
        self._every, self._seconds = settings.checkpoint_every, settings.checkpoint_seconds
        self._history = settings.checkpoint_history
        self._began = time.monotonic()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self.saved = rounds
        """The last round that was saved, or is being saved."""
        self.sound = True
        """Whether all went well; after a failure metrics.jsonl may end in half a line, and is not to be added to."""

    @property
    def lines(self) -> Sequence[dict[str, Any]]:
        """The metrics as they are written down."""
        return self._metrics.lines

    def append(self, lines: Sequence[dict[str, Any]]) -> None:
        """Write down the metrics of the rounds that are not there yet, given those of all rounds."""
        missing = lines[len(self._metrics.lines) :]
        if missing:
            with self._noticing():
                self._metrics.append(*missing)

    def is_due(self, round: int) -> bool:
        """Whether a save is due after so many rounds; by time none is while another is still being written."""
        if self._every:
            return round % self._every == 0
        return self._thread is None and time.monotonic() - self._began >= self._seconds

    def save(self, copy: Copy, *, wait: bool) -> None:
        """Make a copy the checkpoint: beside the training, or now where it is to `wait` or rounds are counted."""
        self.check(wait=True)
        self._began, self.saved = time.monotonic(), copy.facts["round"]
        if wait or self._every:
            self._write(copy)
        else:
            self._thread = threading.Thread(target=self._write_beside, args=(copy,), name=f"save {self.folder}")
            self._thread.start()

    def check(self, *, wait: bool) -> None:
        """Raise what the save beside the training failed with, if it has ended; with `wait`, once it has."""
        if self._thread and (wait or not self._thread.is_alive()):
            _join(self._thread)
            self._thread = None
            failure, self._failure = self._failure, None
            if failure:
                raise failure

    def _write_beside(self, copy: Copy) -> None:
        try:
            with _TURN:
                self._write(copy)
        except BaseException as failure:  # for the run's own thread to raise
            self._failure = failure

    def _write(self, copy: Copy) -> None:
        with self._noticing():
            self._metrics.sync()
            checkpoint.write_copy(self.folder, copy, also=lambda: history.files_needed(self.folder))
            if self._history:
                history.keep(self.folder, copy.facts["round"], self._history)

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.sound = False
            raise


def _join(thread: threading.Thread) -> None:
    """Wait for its end, also when interrupted meanwhile: the folder is unlocked next, and then it must be still."""
    interrupted: KeyboardInterrupt | None = None
    while thread.is_alive():
        try:
            thread.join()
        except KeyboardInterrupt as error:
            interrupted = error
    if interrupted:
        raise interrupted
