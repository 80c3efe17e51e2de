"""The runs of published tables as a list of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedwidth.config.read import Variant, identity, read_settings, recipe_names
from fedwidth.reproduce.records import key_of
from fedwidth.settings import Settings


@dataclass(frozen=True)
class Job:
    """A run of a table with one seed, and the folder it works in."""

    table: str
    label: str
    settings: Settings
    folder: Path
    changes: tuple[str, ...] = ()
    """What was changed in the recipe, for its record."""

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.table} {self.label}, seed {self.settings.seed}"

    @property
    def key(self) -> str:
        """What makes a run the one a table asks for: wherever it was made, and for whichever table (some ask twice)."""
        return key_of(asdict(self.settings))


def list_jobs(
    tables: Sequence[str],
    *,
    only: Sequence[str],
    seeds: Sequence[int],
    changes: Sequence[str],
    work: Path,
) -> list[Job]:
    """Every run of the tables, seed by seed."""
    found: list[tuple[int, Job]] = []
    noted = tuple(text for text in changes if not text.startswith("data.root"))
    for source in tables:
        table = source if source in recipe_names() else Path(source).stem
        for run in _read_runs(source, only, changes):
            for place, seed in enumerate(seeds or [run.settings.seed]):
                settings = replace(run.settings, seed=seed)
                # The fingerprint keeps runs of other settings (--set) apart.
                name = f"seed-{seed}-{identity(settings)[:8]}"
                found.append((place, Job(table, run.label, settings, work / table / run.label / name, noted)))
    return [job for _, job in sorted(found, key=lambda pair: pair[0])]


def _read_runs(source: str, only: Sequence[str], changes: Sequence[str]) -> list[Variant]:
    """The runs of a recipe with these labels, else all; a change need not make sense for the others."""
    if not only:
        return list(read_settings(source, changes).runs)
    chosen = {run.label: run for label in only for run in read_settings(source, changes, only=label).runs}
    return [chosen[label] for label in read_settings(source).labels if label in chosen]


def title_of(jobs: Sequence[Job]) -> str:
    """Of jobs that run together, for people."""
    tables = ", ".join(dict.fromkeys(job.table for job in jobs))
    return jobs[0].title if len(jobs) == 1 else f"{tables}, {len(jobs)} runs as one batch"


def anywhere(settings: Settings) -> Settings:
    """The settings without the place of the data on this machine."""
    return replace(settings, data=replace(settings.data, root=""))
