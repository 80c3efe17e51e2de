"""A run's output folder: config.toml, metrics.jsonl, summary.json, the checkpoint; one run at a time."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedwidth import files
from fedwidth.config.given import describe_given, read_given
from fedwidth.config.influence import BUDGET, influences
from fedwidth.config.read import read_config
from fedwidth.config.schema import shown
from fedwidth.errors import OptionError, StateError
from fedwidth.run.about import NAME as ABOUT
from fedwidth.run.checkpoint import NAME, rounds_done, write_whole
from fedwidth.settings import Settings
from fedwidth.training.client_memory import FOLDER as CLIENTS_FOLDER

CONFIG, TRACKING = "config.toml", "tracking.json"
LEDGER = "privacy.json"
"""What a private run has opened, written before it does."""
MODELS = "models.safetensors"
FILES = ("metrics.jsonl", "summary.json", "clients.json", "report.html", TRACKING, LEDGER, MODELS, NAME, CONFIG)
LOCK, GROUP_LOCK, SERVE_LOCK = files.LOCK, ".runs.lock", ".serve.lock"
"""The locks: of one run, of a folder that holds several, and of a deployment, from its start to its end."""
LOCKS = (LOCK, GROUP_LOCK, SERVE_LOCK)
COUNTED = ("bytes_down", "bytes_up", "macs", "seconds")
"""What every line of the metrics counts, and a summary cannot do without."""
HISTORY = "history"
"""The folder of earlier checkpoints in the folder of a run."""
COMMAND, PYTHON = ("--resume", "--overwrite", "--out"), ("resume=True", "overwrite=True", "out")
"""How one goes on with a run, replaces it and names its folder: on the command line, and in Python."""
ANOTHER = {COMMAND: "another --out", PYTHON: "another folder as out"}
"""How one takes another folder."""
AGAIN = {COMMAND: "repeat the command you began with, and add --resume", PYTHON: "give the settings it began with"}
"""What to do where somebody goes on with other settings."""


class InUse(OptionError):
    """Raised where another process writes to the folder."""


@contextmanager
def locked(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Hold the folder's lock; a second run in it is refused. The lock goes with the process, so none is left over."""
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(files.locked(folder / name))
        except BlockingIOError:
            raise InUse(f"another run is writing to {folder}; wait for it or give another folder") from None
        except OSError as error:
            raise OptionError(f"cannot use {folder} as output folder: {error.strerror or error}") from error
        yield


def check_folder(
    folder: Path,
    settings: Settings,
    *,
    resume: bool,
    overwrite: bool,
    given: Collection[str] = (),
    words: tuple[str, str, str] = COMMAND,
) -> None:
    """Refuse a folder in which this run may not begin, go on or replace another; writes nothing.

    `given` is what this run was given in Python; `words` is how the user asks for what messages name.
    """
    go_on, replace, out = words
    if resume and overwrite:
        raise OptionError(f"{go_on} goes on with a run and {replace} replaces it: give one of them")
    try:
        for above in (folder, *folder.parents):
            if above.is_dir():
                break
            if above.exists() or above.is_symlink():
                raise OptionError(f"{above} is a file; give a folder as {out}")
    except OSError as error:
        raise OptionError(f"cannot use {folder} as output folder: {error.strerror or error}") from error
    if overwrite:
        check_left_by_run(folder, words)
    if (folder / LOCK).exists():
        with locked(folder):  # one that is being written to is refused here already
            pass
    if resume:
        check_same(folder, settings, given, advice=AGAIN[words])
        lines_done(folder, rounds_done(folder))
    elif not overwrite and holds_run(folder):
        raise OptionError(f"{folder} holds a run already; give {go_on}, {replace} or {ANOTHER[words]}")


def find_run_folders(folder: Path) -> Iterator[Path]:
    """The folders at or below this one that have a config.toml: parents first, in order of their names.

    Numbers in names count by their value, and the seeds of the main run come before what it is compared with.
    """

    def order(name: str) -> tuple[bool, list[str]]:
        return name == "compare", [part.zfill(9) if part.isdigit() else part for part in re.split(r"(\d+)", name)]

    for path, inner, names in os.walk(folder):
        inner.sort(key=order)
        if CONFIG in names:
            yield Path(path)


def holds_run(folder: Path) -> bool:
    """Whether anything a run writes is there."""
    return any((folder / name).exists() for name in FILES)


def left_by_run(folder: Path) -> bool:
    """Whether a run of fedwidth has been in the folder: it leaves its lock there, or at least its weights."""
    return any((folder / name).exists() for name in (LOCK, GROUP_LOCK, NAME, MODELS))


def check_left_by_run(folder: Path, words: tuple[str, str, str] = COMMAND) -> None:
    """Refuse to replace files that have the names of a run's but are some other program's."""
    if not left_by_run(folder) and (there := [name for name in FILES if (folder / name).exists()]):
        raise OptionError(
            f"{words[1]} replaces a run of fedwidth, but {folder} has {there[0]} and neither the lock nor the weights"
            f" of one: give {ANOTHER[words]}, or remove {there[0]} yourself"
        )


def refuse_files_of_run(*paths: Path, but: str = "") -> None:
    """Refuse to write over what a run keeps in its folder, `but` a file of this name: nothing would be left to read."""
    for path in map(Path.absolute, paths):
        folder = path.parent
        inside = folder.name in (HISTORY, CLIENTS_FOLDER) and _is_of_run(folder.parent)
        if inside or (path.name in (*FILES, *LOCKS, ABOUT) and path.name != but and _is_of_run(folder)):
            raise OptionError(
                f"{path} is a file of the run in that folder, which is never replaced: give another --out"
            )


def _is_of_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (CONFIG, *LOCKS))


def check_same(folder: Path, settings: Settings, given: Collection[str] = (), *, advice: str = "") -> None:
    """Refuse to go on with a run that was started with other settings, or that was given what this one is not.

    `advice` says what to do about the settings.
    """
    path = folder / CONFIG
    if not path.exists():
        if holds_run(folder):
            raise StateError(f"{folder} holds files of other runs, but no {CONFIG} of one to resume")
        return
    try:
        there = influences(asdict(read_config(path)), without=BUDGET)
    except OptionError as error:
        raise StateError(f"{path} was written by another version of fedwidth or changed: {error}") from None
    if lacking := {name: title for name, title in read_given(path).items() if name not in given}:
        again = ", ".join(f"{name}=…" for name in lacking)
        raise StateError(f"{folder} cannot go on so: {describe_given(lacking)}; give again Experiment(…, {again})")
    here = influences(asdict(settings), without=BUDGET)
    differences = [
        f"{key} is {shown(there[key])} there and {shown(here[key])} now"
        for key in here
        if key in there and there[key] != here[key]
    ]
    if differences:
        more = f" (and {len(differences) - 3} more)" if len(differences) > 3 else ""
        raise StateError(
            f"{folder} holds a run with other settings: {', '.join(differences[:3])}{more}{advice and '; '}{advice}"
        )


def clear_folder(folder: Path) -> None:
    """Remove a previous run's files, those of its seeds and of the runs it was compared with, and nothing else."""
    _remove_files(folder)
    for inner in (*folder.glob("compare/*/seed-*"), *folder.glob("compare/*"), *folder.glob("seed-*")):
        if not inner.is_symlink() and left_by_run(inner) and holds_run(inner):
            with locked(inner):  # refuses where another process is writing
                _remove_files(inner)
                with contextlib.suppress(PermissionError):  # Windows removes no open file
                    (inner / LOCK).unlink()
        with contextlib.suppress(OSError):  # anything else in it stays
            inner.rmdir()
    with contextlib.suppress(OSError):
        (folder / "compare").rmdir()


def _remove_files(folder: Path) -> None:
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
        (folder / f"{name}.partial").unlink(missing_ok=True)
    for kept in (folder / HISTORY).glob("round-*.safetensors"):
        kept.unlink()
    with contextlib.suppress(OSError):
        (folder / HISTORY).rmdir()
    for events in (folder / "tensorboard").glob("events.out.tfevents.*"):
        events.unlink()
    with contextlib.suppress(OSError):
        (folder / "tensorboard").rmdir()


class Metrics:
    """metrics.jsonl: one line a round, appended as rounds end."""

    def __init__(self, folder: Path, *, rounds: int) -> None:
        """Keep the lines of the first `rounds` rounds (a resumed run repeats the ones after its checkpoint)."""
        self.path = folder / "metrics.jsonl"
        self.lines = lines_done(folder, rounds)
        write_whole(self.path, "".join(json.dumps(line) + "\n" for line in self.lines))

    def append(self, *lines: dict[str, Any]) -> None:
        """Add the lines of rounds: who reads the file sees them at once, and `sync` makes them last."""
        with self._named(), open(self.path, "a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
        self.lines.extend(lines)

    def sync(self) -> None:
        """Wait until the lines are on disk, which they must be before the checkpoint of the last one is."""
        with self._named(), open(self.path, "a") as file:
            os.fsync(file.fileno())

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StateError(f"cannot write {self.path}: {error.strerror or error}") from error


def lines_done(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """The metrics of the first so many rounds; refuses a file that lacks one of them or what it counted."""
    path = folder / "metrics.jsonl"
    lines = [line for line in read_metrics(folder) if line["round"] <= rounds]
    if [line["round"] for line in lines] != list(range(1, rounds + 1)):
        raise StateError(f"{path} does not hold the rounds 1 to {rounds} that the checkpoint has done")
    for line in lines:
        for name, value in {**dict.fromkeys(COUNTED), **line}.items():
            if not (_is_number(value) if name in COUNTED else _may_be(value)):
                found = f"has {name} {shown(value)}, which is no number" if name in line else f"has no {name}"
                raise StateError(f"{path} is damaged: its line of round {line['round']} {found}")
    return lines


def _is_number(value: object) -> bool:
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


def _may_be(value: object) -> bool:
    """Whether a line may hold this value: a finite number, nothing, or several things; no text."""
    return _is_number(value) or value is None or isinstance(value, bool | list | dict)


def read_summary(folder: Path) -> dict[str, Any]:
    """What a finished run says of itself; nothing where it has not ended, or its summary cannot be read."""
    try:
        found = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The finished lines of a run's metrics; a half-written last line (a killed run) is left out."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"cannot read {path}: {error}") from error
    lines = []
    for text in content.split("\n")[:-1]:
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            break
        if not isinstance(line, dict) or not isinstance(line.get("round"), int):
            raise StateError(f"{path} holds a line that is no round: {text[:60]!r}")
        lines.append(line)
    return lines
