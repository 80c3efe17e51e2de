"""Reading run folders as they are: finished, running, killed, of another version.

Nothing here trusts a file: what cannot be read is left out and said in the run's notes.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from fedwidth.config.given import GIVEN
from fedwidth.errors import OptionError
from fedwidth.objectives.metric import ACCURACY, Measure
from fedwidth.report.measures import as_accuracy, measure_in
from fedwidth.run.folder import find_run_folders

Table = dict[str, Any]
Stamp = tuple[tuple[int, int, int] | None, ...]

FILES = ("config.toml", "metrics.jsonl", "summary.json", "clients.json")
"""The files of a run folder that say something about its run."""

SPENT = ("bytes_down", "bytes_up", "macs")
"""What lines of the metrics count, and the report adds up over rounds."""

AROUND = ("../enrolled", "../audit.jsonl")
"""What a deployment has beside the folder of its run."""

PLAIN_FILES = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""How a file is opened so that links are refused and pipes are not waited for; Windows has neither."""
_SEED_FOLDER = re.compile(r"seed-\d+", re.ASCII)


@dataclass(frozen=True)
class Run:
    """What one run folder says about its run."""

    folder: Path
    short_path: str
    """The path from the folder that was asked for, without `compare` and `seed-N`; empty for that folder itself."""
    config: Table
    config_text: str
    metrics: list[Table]
    """The lines of metrics.jsonl, one for each round, in order."""
    summary: Table | None
    """What summary.json says; None while the run is unfinished."""
    clients: list[Table]
    notes: tuple[str, ...]
    """Sentences about what could not be read."""
    measure: Measure = ACCURACY
    """What stands under the names of accuracy."""
    stamp: Stamp = ()
    """Number, size and time of its files just before they were read, to see whether they have changed since."""

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting by its dotted name, or the default where the config lacks it or holds another kind of value."""
        found: Any = self.config
        for part in name.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if found is None or (default is not None and not isinstance(found, type(default))):
            return default
        return found

    @property
    def settings(self) -> Table:
        """The settings in the config, without what it says besides: what the run was given in Python."""
        return {name: value for name, value in self.config.items() if name != GIVEN}

    @property
    def seed(self) -> int:
        """The run's seed."""
        seed: int = self.setting("seed", 0)
        return seed

    @property
    def method(self) -> str:
        """The name of its method."""
        name = (self.summary or {}).get("method")
        return self.setting("method.name", "") or (name if isinstance(name, str) else "") or "unknown method"

    @property
    def rounds(self) -> int:
        """How many rounds the run is to have."""
        rounds: int = self.setting("rounds", 0)
        return rounds or self.done

    @property
    def done(self) -> int:
        """How many rounds are finished."""
        return int(self.metrics[-1]["round"]) if self.metrics else 0

    @property
    def finished(self) -> bool:
        """Whether the run has written its summary."""
        return self.summary is not None

    def final(self, key: str) -> float:
        """A number at the end of the run: from its summary, else as last measured; NaN where it never was."""
        if self.summary is not None and not math.isnan(found := number(self.summary.get(key))):
            return found
        return next((number(line[key]) for line in reversed(self.metrics) if key in line), math.nan)

    @cached_property
    def spent(self) -> list[tuple[float, float]]:
        """(bytes sent both ways, multiply-adds) up to and including each line of the metrics."""
        down, up, macs = ([number(line.get(name)) for line in self.metrics] for name in SPENT)
        sent = (both[0] + both[1] for both in zip(down, up, strict=True))
        return list(zip(accumulate(sent), accumulate(macs), strict=True))


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Every run in these folders and below them, each once; a folder without one is refused."""
    runs: dict[Path, Run] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            what = "is a file" if folder.exists() else "does not exist"
            raise OptionError(f"{folder} {what}; give a folder that holds a run (config.toml and metrics.jsonl)")
        found = [run for found in find_run_folders(folder) if (run := read_run(found, folder)) is not None]
        if not found:
            raise OptionError(f"{folder} holds no run: neither it nor a folder in it has config.toml and metrics.jsonl")
        for run in found:
            runs.setdefault(run.folder.resolve(), run)
    return list(runs.values())


def number(value: Any) -> float:
    """The value as a float, NaN where it is no number.

    >>> number(3), number("3"), number(True)
    (3.0, nan, nan)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def stamp_of(folder: Path) -> Stamp:
    """Number, size and time of each file of a run folder, None for one that is not there: it changes when they do."""

    def look(path: Path) -> tuple[int, int, int] | None:
        try:
            found = path.lstat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    return tuple(look(folder / name) for name in (*FILES, *AROUND))


def read_run(folder: Path, asked: Path) -> Run | None:
    """The run in a folder at or below the one that was asked for; None where there is none."""
    notes: list[str] = []
    stamp = stamp_of(folder)
    text = _read_text(folder / "config.toml", notes) or ""
    try:
        config = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        config = {}
        notes.append(f"config.toml cannot be read: {error}")
    measured = any((folder / name).exists() for name in ("metrics.jsonl", "summary.json"))
    if not measured and not isinstance(config.get("method"), dict):
        return None  # some other program's config.toml
    summary = _read_json(folder / "summary.json", dict, notes)
    clients = _read_json(folder / "clients.json", list, notes) or []
    metrics = _read_metrics(folder / "metrics.jsonl", notes)
    measure = measure_in([*([summary] if summary else []), *reversed(metrics)])
    parts = [part for part in folder.relative_to(asked).parts if part != "compare" and not _SEED_FOLDER.fullmatch(part)]
    return Run(
        folder=folder,
        short_path="/".join(parts),
        config=config,
        config_text=text,
        metrics=[as_accuracy(line, measure) for line in metrics],
        summary=None if summary is None else as_accuracy(summary, measure),
        clients=[as_accuracy(row, measure) for row in clients if isinstance(row, dict)],
        notes=tuple(notes),
        stamp=stamp,
        measure=measure,
    )


def _read_metrics(path: Path, notes: list[str]) -> list[Table]:
    """The metrics by round. The last line may be half-written; other lines that make no sense are counted and noted."""
    rounds: dict[int, Table] = {}
    texts = (_read_text(path, notes) or "").split("\n")
    unread = 0
    for position, text in enumerate(texts):
        try:
            line = json.loads(text) if text.strip() else None
        except (ValueError, RecursionError):
            unread += position < len(texts) - 1
            continue
        if isinstance(line, dict) and type(line.get("round")) is int and line["round"] >= 0:
            rounds[line["round"]] = line
        elif line is not None:
            unread += 1
    if unread:
        notes.append(f"{unread} line{'s' * (unread > 1)} of metrics.jsonl cannot be read")
    lines = [rounds[round] for round in sorted(rounds)]
    for line in lines:
        if not all(math.isfinite(number(line.get(name))) for name in SPENT):
            notes.append(
                f"metrics.jsonl does not say what round {line['round']} sent and computed, so sums end before it"
            )
            break
    return lines


def _read_json(path: Path, kind: type, notes: list[str]) -> Any:
    text = _read_text(path, notes)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, kind):
        return found
    notes.append(f"{path.name} cannot be read")
    return None


def _read_text(path: Path, notes: list[str]) -> str | None:
    """The text of a plain file. A link could show a file from outside the folder, and a pipe could wait for ever."""
    try:
        with open(os.open(path, os.O_RDONLY | PLAIN_FILES), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                notes.append(f"{path.name} is no plain file")
                return None
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        why = "is a link" if path.is_symlink() else f"cannot be read: {error.strerror or error}"
        notes.append(f"{path.name} {why}")
        return None
