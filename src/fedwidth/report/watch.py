"""A folder of runs in progress, looked at again and again: only what has changed is read and counted again."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

from fedwidth.report.describe import Description, describe
from fedwidth.report.entries import group_runs
from fedwidth.report.page import embed
from fedwidth.report.rebuild import ModelRebuilder
from fedwidth.report.runs import Run, Stamp, read_run, stamp_of
from fedwidth.run.folder import find_run_folders

REST = 9
"""After counting which weights were trained, that rests so many times as long as it took: it competes with the run."""


class Watch:
    """The page's data about a folder, which may appear, grow, be cleared and be filled again."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = Path(folder)
        self._rebuilder = ModelRebuilder()
        self._memory = Memory(clock)
        self._runs: dict[Path, Run | None] = {}
        self._stamps: dict[Path, Stamp] | None = None
        self._lock = threading.Lock()
        self._data: Description = {}
        self._text = self._state = ""

    def look(self) -> tuple[str, str, Description]:
        """A name for the state of the data, the data as JSON, and the data itself; several threads may ask."""
        with self._lock:
            stamps = {folder: stamp_of(folder) for folder in find_run_folders(self.folder)}
            if stamps != self._stamps or self._memory.is_behind():
                self._read(stamps)
                self._stamps = stamps
            return self._state, self._text, self._data

    def _read(self, stamps: dict[Path, Stamp]) -> None:
        # Runs keep the order in which they were first seen, and so their colours.
        for folder in [*self._runs, *stamps]:
            known = self._runs.get(folder)
            if folder not in stamps:
                self._runs[folder] = None
            elif known is None or known.stamp != stamps[folder]:
                self._runs[folder] = read_run(folder, self.folder)
        runs = [run for run in self._runs.values() if run is not None]
        self._memory.begin()
        self._data = describe(
            group_runs(runs), folders=[self.folder], rebuilder=self._rebuilder, recall=self._memory.recall
        )
        self._memory.end()
        self._data["waiting"] = "" if runs else f"Waiting for a run in {self.folder}."
        self._text = embed(self._data)
        self._state = hashlib.sha256(self._text.encode("utf-8", "replace")).hexdigest()[:16]


class Memory:
    """A `Recall` that keeps what was made of runs that have not changed since.

    Coverage is costly: it is not made again before it has rested `REST` times as long as it took, and meanwhile stays
    as it was, unless a run has been cleared or added.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[Hashable, Any] = {}
        self._used: dict[Hashable, Any] = {}
        self._coverage: tuple[Sequence[Run], Any] | None = None
        self._rests_until = 0.0
        self._behind = False

    def is_behind(self) -> bool:
        """Whether something was left as it was that may be made again by now."""
        return self._behind and self._clock() >= self._rests_until

    def begin(self) -> None:
        """Start a new description."""
        self._used, self._behind = {}, False

    def end(self) -> None:
        """Forget what this description had no use for."""
        self._kept = self._used

    def recall(self, what: Hashable, runs: Sequence[Run], make: Callable[[], Any]) -> Any:
        """What was made of these runs before, if they have not changed since, or is made now."""
        key = (what, tuple((run.folder, run.stamp) for run in runs))
        if what == "coverage":
            return self._rested(key, runs, make)
        self._used[key] = self._kept[key] if key in self._kept else make()
        return self._used[key]

    def _rested(self, key: Hashable, runs: Sequence[Run], make: Callable[[], Any]) -> Any:
        if key in self._kept:
            self._used |= {k: v for k, v in self._kept.items() if k == key or _is_frames(k)}
            return self._kept[key]
        if self._coverage and self._clock() < self._rests_until and _go_on(self._coverage[0], runs):
            self._behind = True
            self._used |= {k: v for k, v in self._kept.items() if _is_frames(k)}
            return self._coverage[1]
        began = self._clock()
        self._used[key] = made = make()
        self._coverage = tuple(runs), made
        self._rests_until = self._clock() + REST * (self._clock() - began)
        return made


def _is_frames(key: Any) -> bool:
    return bool(key[0] == "frames")


def _go_on(before: Sequence[Run], now: Sequence[Run]) -> bool:
    """Whether these are the same runs, none of them started anew."""
    return [run.folder for run in before] == [run.folder for run in now] and all(
        old.done <= new.done and old.config_text == new.config_text for old, new in zip(before, now, strict=True)
    )
