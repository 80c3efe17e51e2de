"""The runs of published tables: one for each row of a recipe and seed, with the folder it works in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from fedwidth.analysis.experiment_key import experiment_key
from fedwidth.config.influence import identity
from fedwidth.config.read import read_settings, recipe_names
from fedwidth.config.recipe import Variant
from fedwidth.settings import Settings

SEEDS = "seeds"
Packed = bool | Literal["seeds"]
"""Whether runs train as one batch: all that are alike (True), or the seeds of one row."""


@dataclass(frozen=True)
class TableRun:
    """A run that a table asks for, with one seed, and the folder it works in."""

    table: str
    label: str
    settings: Settings
    folder: Path
    changes: tuple[str, ...] = ()
    """The settings that were changed in the recipe, as `key=value`; its record keeps them."""

    @property
    def title(self) -> str:
        """The table, the label and the seed, as messages name the run."""
        return f"{self.table} {self.label}, seed {self.settings.seed}"

    @cached_property
    def key(self) -> str:
        """The key of its experiment: the same wherever it is run, and in every table that asks for it."""
        return experiment_key(asdict(self.settings))


def list_table_runs(
    tables: Sequence[str],
    *,
    only: Sequence[str],
    seeds: Sequence[int],
    changes: Sequence[str],
    work: Path,
) -> list[TableRun]:
    """Every run of the tables: all with the first seed, then all with the second, and so on."""
    found: list[tuple[int, TableRun]] = []
    noted = tuple(text for text in changes if not text.startswith("data.root"))
    for source in tables:
        table = source if source in recipe_names() else Path(source).stem
        for row in _read_rows(source, only, changes):
            for turn, seed in enumerate(seeds or [row.settings.seed]):
                settings = replace(row.settings, seed=seed)
                # The fingerprint keeps runs of other settings (--set) apart.
                name = f"seed-{seed}-{identity(settings)[:8]}"
                found.append((turn, TableRun(table, row.label, settings, work / table / row.label / name, noted)))
    return [run for _, run in sorted(found, key=lambda pair: pair[0])]


def _read_rows(source: str, only: Sequence[str], changes: Sequence[str]) -> list[Variant]:
    """The rows of a recipe with these labels, else all; a change need not make sense for the others."""
    if not only:
        return list(read_settings(source, changes).runs)
    chosen = {row.label: row for label in only for row in read_settings(source, changes, only=label).runs}
    return [chosen[label] for label in read_settings(source).labels if label in chosen]


def title_of(runs: Sequence[TableRun]) -> str:
    """How messages name one run, or several that train together."""
    tables = ", ".join(dict.fromkeys(run.table for run in runs))
    return runs[0].title if len(runs) == 1 else f"{tables}, {len(runs)} runs as one batch"


def without_root(settings: Settings) -> Settings:
    """The settings without the folder of the data on this machine, which is nobody else's business."""
    return replace(settings, data=replace(settings.data, root=""))
