"""started.json: which runs of published tables were made for a few rounds only, to see that their recipes run."""

from __future__ import annotations

import json
from contextlib import ExitStack, suppress
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path

from fedwidth.errors import StateError
from fedwidth.files import LOCK, locked, write_whole

STARTED = "started.json"


@dataclass(frozen=True)
class StartedRun:
    """A run of a recipe that was made for a few rounds only."""

    recipe: str
    label: str
    rounds: int
    train_loss: float | None
    seconds: float
    hardware: str
    date: str
    device: str = "cpu"
    version: str = ""
    """The version of fedwidth; earlier entries do not say."""

    @property
    def key(self) -> tuple[str, str, bool]:
        """What started.json has one entry of: a run on a CPU, and the same run on a GPU."""
        return self.recipe, self.label, self.on_cpu

    @property
    def on_cpu(self) -> bool:
        """Whether it ran on a CPU, so that its time says nothing about a GPU."""
        return not self.device.startswith("cuda")


def read_started(results: Path) -> list[StartedRun]:
    """The runs that started.json lists, sorted; none where there is no such file."""
    path = results / STARTED
    if not path.exists():
        return []
    names = [field.name for field in fields(StartedRun)]
    needed = [field.name for field in fields(StartedRun) if field.default is MISSING]
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        if not all(set(needed) <= set(row) for row in rows):
            raise KeyError
        found = [StartedRun(**{name: row[name] for name in names if name in row}) for row in rows]
    except (ValueError, TypeError, KeyError):
        raise StateError(f"{path} must be a list of tables, each with {', '.join(needed)}") from None
    return sorted(found, key=lambda run: run.key)


def write_started(results: Path, started: StartedRun) -> None:
    """Add a run to started.json, in place of the same run on the same kind of device."""
    try:
        results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(f"cannot write to {results}: {error.strerror or error}") from error
    with ExitStack() as held:
        with suppress(OSError):  # some network file systems have no locks
            held.enter_context(locked(results / LOCK, wait=True))  # neither of two processes loses what the other wrote
        kept = [run for run in read_started(results) if run.key != started.key]
        rows = [asdict(run) for run in sorted([*kept, started], key=lambda run: run.key)]
        write_whole(results / STARTED, json.dumps(rows, indent=1) + "\n")
