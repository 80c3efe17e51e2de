"""The columns of yardsticks and gains in the tables of docs/results.md; yardsticks are found among recorded runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedwidth.analysis.difference import correct
from fedwidth.analysis.wording import over_seeds
from fedwidth.analysis.yardsticks import (
    KINDS,
    TO_BEAT,
    Accuracies,
    Gain,
    find_gain,
    yardstick_key,
    yardstick_keys,
    yardsticks,
)
from fedwidth.config.schema import build
from fedwidth.reproduce.records import Record
from fedwidth.settings import Settings

EXPLAINED = (
    "Yardsticks, where they were run: *exclude*, only devices that can hold the server's model; *smallest for all*;"
    " *capped*, the same method with a server model as wide as the widest device; *full for all*. Gain: accuracy less"
    " that of the best of the first three, seed by seed, with its 95 % interval where there are seeds for one. A column"
    " that a table lacks waits in the queue, or does not exist there: *exclude* where no device holds the whole model,"
    " *capped* where one does. FedRolex's tables have *smallest* and *largest* as rows of their own, which the paper"
    " trains for fewer rounds than the methods and with other cuts of the rate; columns are trained as the methods."
)


@dataclass(frozen=True)
class Measured:
    """A run in a row of a table: its settings, and what it reached."""

    settings: Settings
    accuracies: Accuracies
    best: bool = False
    """Whether the accuracies are those of the best round and not of the last."""


class Yardsticks:
    """All recorded runs, to find the yardsticks of a run among them."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._found: dict[str, dict[int, Record]] = {}
        for record in records:
            self._found.setdefault(yardstick_key(build(Settings, record.settings)), {})[record.seed] = record

    def columns(self, rows: Sequence[Measured]) -> tuple[list[str], list[list[str]]]:
        """The titles of the columns that have something to show, and for every row its cells in them."""
        found = [self._of(row) for row in rows]
        kinds = [kind for kind in KINDS if any(kind in each for each in found)]
        gains = self.gains(rows)
        if not kinds:
            return [], [[] for _ in rows]
        said = [
            self._said(f"{gain.difference} over {gain.kind}", row, each) if gain else "–"
            for row, each, gain in zip(rows, found, gains, strict=True)
        ]
        cells = [
            [self._shown(each[kind], row) if kind in each else "–" for kind in kinds]
            for row, each in zip(rows, found, strict=True)
        ]
        if not any(gains):
            return kinds, cells
        return [*kinds, "gain"], [[*mine, gain] for mine, gain in zip(cells, said, strict=True)]

    def gains(self, rows: Sequence[Measured]) -> list[Gain | None]:
        """The gain of every run over the best of its yardsticks that were run, corrected as one family (Holm)."""
        gains = [find_gain(row.accuracies, self._of(row)) for row in rows]
        corrected = iter(correct([gain.difference for gain in gains if gain]))
        return [replace(gain, difference=next(corrected)) if gain else None for gain in gains]

    def _said(self, gain: str, row: Measured, found: Mapping[str, Accuracies]) -> str:
        """A gain, and which of the yardsticks to beat were not run: over the best of all it may be smaller."""
        left = self._left(row, found)
        return f"at most {gain}; {' and '.join(left)} not run" if left else gain

    def lacks(self, row: Measured) -> bool:
        """Whether one of the yardsticks that a run has to beat was not run, so that its gain may be smaller."""
        return bool(self._left(row, self._of(row)))

    def _left(self, row: Measured, found: Mapping[str, Accuracies]) -> list[str]:
        return [kind for kind in yardsticks(row.settings) if kind in TO_BEAT and kind not in found]

    def _shown(self, yardstick: Accuracies, row: Measured) -> str:
        """What a yardstick reaches, and with which seeds, where it has fewer than the run."""
        seeds = f" (seed {', '.join(map(str, yardstick))})" if len(yardstick) < len(row.accuracies) else ""
        return f"{over_seeds(yardstick.values())}{seeds}"

    def _of(self, row: Measured) -> Mapping[str, Accuracies]:
        """The accuracies of a run's yardsticks, by kind, over the seeds of the run."""
        found = {}
        for kind, keys in yardstick_keys(row.settings).items():
            records = next((self._found[key] for key in keys if key in self._found), {})
            mine = {
                seed: 100 * (record.best_accuracy if row.best else record.final_accuracy)
                for seed, record in sorted(records.items())
                if seed in row.accuracies
            }
            if mine:
                found[kind] = mine
        return found
