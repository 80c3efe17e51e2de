"""What of the published tables remains to be run, how long that will take, and what was started to see that it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mean

from fedwidth.errors import StateError
from fedwidth.reproduce_time import show_time
from fedwidth.results import Record
from fedwidth.results_cells import Cell
from fedwidth.results_markdown import markdown, plural
from fedwidth.results_time import estimate_seconds

STARTED = "started.json"
WANTED = 3
"""Seeds of each run, in the end."""


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


def read_started(results: Path) -> list[Start]:
    """What is noted in started.json, nothing where there is none."""
    path = results / STARTED
    if not path.exists():
        return []
    names = [field.name for field in fields(Start)]
    try:
        found = [Start(**{name: row[name] for name in names}) for row in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError, KeyError):
        raise StateError(f"{path} must be a list of tables, each with {', '.join(names)}") from None
    return sorted(found, key=lambda start: (start.recipe, start.label))


class Forecast:
    """How long runs will take, from what runs like them took."""

    def __init__(self, records: Sequence[Record], started: Sequence[Start] = ()) -> None:
        self.records, self.started = records, started
        self._known: dict[str, float | None] = {}

    def seconds(self, recipe: str, cell: Cell) -> float | None:
        """Of a whole run: at the pace of the finished runs most like it, else at that of the rounds its recipe was
        started for; None where there are neither."""
        settings = cell.run.settings
        if cell.key not in self._known:
            self._known[cell.key] = estimate_seconds(settings, self.records)
        paces = [start.seconds / start.rounds for start in self.started if start.recipe == recipe and start.rounds]
        found = self._known[cell.key]
        return settings.rounds * mean(paces) if found is None and paces else found


def remaining_texts(tables: Mapping[str, Sequence[Cell]], forecast: Forecast) -> Iterator[str]:
    """The section about what is not run."""
    yield (
        "Times are for the hardware of the runs above, from what a local step took in the fastest run like these, else"
        " in the fastest run of the same model that trained alone, whatever its sizes, with the nearest batch size,"
        " else from the few rounds a recipe was started for (start-up included): a rough guide. Where there is none of"
        " these, nothing is known."
    )
    rows = []
    for name, cells in tables.items():
        left = [_missing(name, cells, forecast, seeds) for seeds in (1, WANTED)]
        if left[-1]:
            unrun = sum(not cell.records for cell in cells)
            rows.append([f"`{name}`", str(len(cells)), str(unrun), *map(_time, left)])
    yield markdown(["recipe", "runs", "without any seed", *(f"{_seeds(n)} of each" for n in (1, WANTED))], rows)
    totals = [f"{_seeds(seeds)} of each: {count_remaining(tables, forecast, seeds)}" for seeds in (1, WANTED)]
    yield f"In all, runs that several tables share counted once, to have {'; '.join(totals)}."


def count_remaining(tables: Mapping[str, Sequence[Cell]], forecast: Forecast, seeds: int) -> str:
    """How many runs are missing to have so many seeds of every cell, and how long they will take."""
    # Papers print some numbers twice: a run that several tables ask for is made once.
    once: dict[str, list[float | None]] = {}
    for name, cells in tables.items():
        for cell in cells:
            once.setdefault(cell.key, _missing(name, [cell], forecast, seeds))
    missing = [seconds for each in once.values() for seconds in each]
    known = [seconds for seconds in missing if seconds is not None]
    if missing and not known:
        return f"{plural(len(missing), 'run')}, for which no time is known yet"
    unknown = f" and {plural(len(missing) - len(known), 'run')} of unknown length" if len(known) < len(missing) else ""
    return f"{plural(len(missing), 'run')}, about {show_time(sum(known))}{unknown}"


def _seeds(seeds: int) -> str:
    return "one seed" if seeds == 1 else plural(seeds, "seed")


def _missing(recipe: str, cells: Sequence[Cell], forecast: Forecast, seeds: int) -> list[float | None]:
    """The seconds of every run that is missing to have so many seeds of each cell."""
    counts = [(cell, max(0, seeds - len(cell.records))) for cell in cells]
    return [forecast.seconds(recipe, cell) for cell, count in counts for _ in range(count)]


def _time(missing: Sequence[float | None]) -> str:
    known = [seconds for seconds in missing if seconds is not None]
    return "done" if not missing else show_time(sum(known)) if len(known) == len(missing) else "not known"


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
                start.date,
            ]
            for start in started
        ]
        yield (
            "Started for a few rounds, to see that the recipe runs from its data to its losses. These runs are not"
            " results and stand in no table above."
        )
        yield markdown(
            ["recipe", "run", "rounds", "training loss at the end", "time", "hardware", "date"], rows, left=2
        )
    run = {name for name, cells in tables.items() if any(cell.records or cell.unfinished for cell in cells)}
    never = [name for name in tables if name not in run | {start.recipe for start in started}]
    if never:
        yield f"Neither run nor started yet: {', '.join(f'`{name}`' for name in never)}."
    else:
        yield "Every recipe has been run or started."
