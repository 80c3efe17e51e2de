"""Runs for a few rounds only, to see that a recipe runs: results/started.json, and what the page says of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path

from fedwidth.errors import StateError
from fedwidth.files import LOCK, locked, write_whole
from fedwidth.reproduce.cells import Cell
from fedwidth.reproduce.forecast import show_time
from fedwidth.reproduce.words import markdown

STARTED = "started.json"
NO_STACK_OVERFLOW = (
    "Those with `stackoverflow` in their names were not started because their data set, an HDF5 file of some GB, was"
    " not available; `fedrolex/next-word-ubuntu` stands in for it."
)


@dataclass(frozen=True)
class Start:
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
    """Of fedwidth; earlier entries do not say."""

    @property
    def place(self) -> tuple[str, str, bool]:
        """What there is one entry of."""
        return self.recipe, self.label, self.on_cpu

    @property
    def on_cpu(self) -> bool:
        """Whether its time says nothing about a GPU."""
        return not self.device.startswith("cuda")


def read_started(results: Path) -> list[Start]:
    """What is noted in started.json, nothing where there is none."""
    path = results / STARTED
    if not path.exists():
        return []
    names = [field.name for field in fields(Start)]
    needed = [field.name for field in fields(Start) if field.default is MISSING]
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        if not all(set(needed) <= set(row) for row in rows):
            raise KeyError
        found = [Start(**{name: row[name] for name in names if name in row}) for row in rows]
    except (ValueError, TypeError, KeyError):
        raise StateError(f"{path} must be a list of tables, each with {', '.join(needed)}") from None
    return sorted(found, key=lambda start: start.place)


def write_started(results: Path, start: Start) -> None:
    """Note a run in started.json, in place of what is noted of the same one on the same kind of device."""
    try:
        results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(f"cannot write to {results}: {error.strerror or error}") from error
    with ExitStack() as held:
        with suppress(OSError):  # some network file systems have no locks
            held.enter_context(locked(results / LOCK, wait=True))  # neither of two processes loses what the other noted
        kept = [each for each in read_started(results) if each.place != start.place]
        rows = [asdict(each) for each in sorted([*kept, start], key=lambda each: each.place)]
        write_whole(results / STARTED, json.dumps(rows, indent=1) + "\n")


def started_texts(tables: Mapping[str, Sequence[Cell]], started: Sequence[Start]) -> Iterator[str]:
    """The section about recipes that were started, and which never were."""
    if started:
        rows = [
            [
                f"`{start.recipe}`",
                start.label,
                str(start.rounds),
                "–" if start.train_loss is None else f"{start.train_loss:.3f}",
                show_time(start.seconds),
                start.hardware,
                f"{start.date}, fedwidth {start.version}" if start.version else start.date,
            ]
            for start in started
        ]
        yield (
            "Started for a few rounds (`fedwidth reproduce RECIPE --start ROUNDS`), to see that the recipe runs from"
            " its data to its losses. These runs are not results and stand in no table above."
        )
        yield markdown(
            ["recipe", "run", "rounds", "training loss at the end", "time", "hardware", "date"], rows, left=2
        )
    run = {name for name, cells in tables.items() if any(cell.records or cell.unfinished for cell in cells)}
    never = [name for name in tables if name not in run | {start.recipe for start in started}]
    if not never:
        yield "Every recipe has been run or started."
        return
    lacking = any(cell.run.settings.data.name == "stackoverflow" for name in never for cell in tables[name])
    why = f" {NO_STACK_OVERFLOW}" if lacking else ""
    yield f"Neither run nor started yet: {', '.join(f'`{name}`' for name in never)}.{why}"
