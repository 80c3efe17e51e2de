"""What of the published tables remains to be run, and how long that will take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean

from fedwidth.analysis.wording import plural, show_time
from fedwidth.reproduce.estimate import count_steps, estimate_pace, pace_facts
from fedwidth.reproduce.records import Record
from fedwidth.reproduce.started import StartedRun
from fedwidth.settings import Settings
from reproduction.cells import Cell
from reproduction.markdown import folded, make_table, published

WANTED_SEEDS = 3
"""How many seeds every run is to have in the end."""
MAX_ROWS_WHOLE = 12
"""A recipe of up to so many runs has a table that shows those that are not run, too."""


@dataclass(frozen=True)
class Expected:
    """How long a run will take, and whether that is known for a CPU alone."""

    seconds: float
    on_cpu: bool = False
    """The time is that of a few rounds on a CPU: it is not added to the time of runs on other hardware."""

    def __str__(self) -> str:
        return f"{show_time(self.seconds)}{' on a CPU' if self.on_cpu else ''}"


class Forecast:
    """How long runs will take, from what runs like them took."""

    def __init__(self, records: Sequence[Record], started: Sequence[StartedRun] = ()) -> None:
        self.records, self.started = records, started
        self._paces: dict[str, float | None] = {}

    def expect(self, recipe: str, cell: Cell) -> Expected | None:
        """How long the run of a cell will take; None where nothing is known.

        It is reckoned at the pace of the finished runs most like it, else at that of the few rounds its recipe was
        started for, on a GPU if it was.
        """
        settings = cell.run.settings
        steps, pace = count_steps(settings), self._find_pace(settings)
        if steps is not None and pace is not None:
            return Expected(steps * pace)
        for on_cpu in (False, True):
            mine = [start for start in self.started if start.recipe == recipe and start.on_cpu == on_cpu]
            if paces := [start.seconds / start.rounds for start in mine if start.rounds]:
                return Expected(settings.rounds * mean(paces), on_cpu)
        return None

    def _find_pace(self, settings: Settings) -> float | None:
        """The seconds of a local step; runs that are alike in all that matters for it are looked up once."""
        facts = json.dumps(pace_facts(asdict(settings)), sort_keys=True)
        if facts not in self._paces:
            self._paces[facts] = estimate_pace(settings, self.records)
        return self._paces[facts]


def remaining_texts(tables: Mapping[str, Sequence[Cell]], forecast: Forecast) -> Iterator[str]:
    """The paragraphs of the section, and a table of the recipes that lack runs."""
    yield (
        "Times are for the hardware of the runs above, from what a local step took in the fastest run like these, else"
        " in the fastest run of the same model that trained alone, whatever its sizes, with the nearest batch size,"
        " else from the few rounds a recipe was started for (start-up included): a rough guide. Those marked as on a"
        " CPU are from such a start on one, and totals leave them out. Where there is none of these, nothing is"
        " known."
    )
    rows = []
    for name, cells in tables.items():
        left = [_missing(name, cells, forecast, seeds) for seeds in (1, WANTED_SEEDS)]
        if left[-1]:
            unrun = sum(not cell.records for cell in cells)
            rows.append([f"`{name}`", str(len(cells)), str(unrun), *map(_time, left)])
    yield make_table(["recipe", "runs", "without any seed", *(f"{_seeds(n)} of each" for n in (1, WANTED_SEEDS))], rows)
    totals = [f"{_seeds(seeds)} of each: {count_remaining(tables, forecast, seeds)}" for seeds in (1, WANTED_SEEDS)]
    yield f"In all, runs that several tables share counted once, to have {'; '.join(totals)}."


def count_remaining(tables: Mapping[str, Sequence[Cell]], forecast: Forecast, seeds: int) -> str:
    """How many runs are missing to have so many seeds of every cell, and how long they will take."""
    # Papers print some numbers twice: a run that several tables ask for is made once.
    once: dict[str, list[Expected | None]] = {}
    for name, cells in tables.items():
        for cell in cells:
            once.setdefault(cell.key, _missing(name, [cell], forecast, seeds))
    missing = [expected for each in once.values() for expected in each]
    known, on_cpu = _split(missing)
    unknown = len(missing) - len(known) - len(on_cpu)
    apart = [f"{plural(len(on_cpu), 'run')} timed on a CPU alone"] if on_cpu else []
    apart += [f"{plural(unknown, 'run')} of unknown length"] if unknown else []
    if missing and not known:
        return f"{plural(len(missing), 'run')}, for which no time{' but that on a CPU' if on_cpu else ''} is known yet"
    left_out = f", not counting {' and '.join(apart)}" if apart else ""
    return f"{plural(len(missing), 'run')}, about {show_time(sum(known))}{left_out}"


def _seeds(seeds: int) -> str:
    return "one seed" if seeds == 1 else plural(seeds, "seed")


def _missing(recipe: str, cells: Sequence[Cell], forecast: Forecast, seeds: int) -> list[Expected | None]:
    """For every run that is missing to have so many seeds of each cell, how long it will take."""
    counts = [(cell, max(0, seeds - len(cell.records))) for cell in cells]
    return [forecast.expect(recipe, cell) for cell, count in counts for _ in range(count)]


def _split(missing: Sequence[Expected | None]) -> tuple[list[float], list[float]]:
    """The seconds of runs whose time is known: those that may be added up, and those on a CPU."""
    known = [expected for expected in missing if expected is not None]
    return [e.seconds for e in known if not e.on_cpu], [e.seconds for e in known if e.on_cpu]


def _time(missing: Sequence[Expected | None]) -> str:
    if not missing:
        return "done"
    if None in missing:
        return "not known"
    sums = [Expected(sum(each), on_cpu) for each, on_cpu in zip(_split(missing), (False, True), strict=True) if each]
    return " and ".join(map(str, sums))


def unrun_texts(tables: Mapping[str, Sequence[Cell]]) -> Iterator[str]:
    """The section that lists the runs that no table above shows, folded."""
    lists = []
    for name, cells in tables.items():
        left = [cell for cell in cells if not cell.records and not cell.unfinished]
        if not left or (len(cells) <= MAX_ROWS_WHOLE and len(left) < len(cells)):
            continue
        if any(cell.paper.number is not None for cell in left):
            rows = [[cell.run.label, published(cell.paper)] for cell in left]
            listed = make_table(["run", "paper"], rows)
        else:
            listed = f"No numbers are published: {', '.join(f'`{cell.run.label}`' for cell in left)}."
        lists.append(folded(f"<code>{name}</code>: {len(left)} of {plural(len(cells), 'run')}", listed))
    if lists:
        yield "## Not run"
        yield "The runs that no table above shows, with the published accuracies they answer to."
        yield from lists
