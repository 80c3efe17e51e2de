"""One run of several that a command makes, and the folder it goes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedwidth.settings import Settings

MAX_FOLDER_NAME = 200
"""Characters; file systems allow 255 bytes."""


@dataclass(frozen=True)
class PlannedRun:
    """A run that is going to be made.

    Runs that differ in their seed alone share a label, and are one row of the table.
    """

    label: str
    title: str
    settings: Settings
    folder: Path


def progress_titles(runs: Sequence[PlannedRun]) -> list[str]:
    """What progress calls each run: its title, and its seed where others have the same label."""
    labels = Counter(run.label for run in runs)
    return [run.title if labels[run.label] == 1 else f"{run.title}, seed {run.settings.seed}" for run in runs]


def folder_names(labels: Iterable[str]) -> dict[str, str]:
    """A folder name for each label; labels that would share one are numbered.

    >>> folder_names(["Rate 1/4", "rate 1-4"])
    {'Rate 1/4': 'rate-1-4', 'rate 1-4': 'rate-1-4-2'}
    """
    names: dict[str, str] = {}
    for label in labels:
        plain = "".join(c if c.isalnum() or c in "-._=" else "-" for c in label).strip("-.").lower() or "run"
        plain = plain[:MAX_FOLDER_NAME]
        name, copy = plain, 1
        while name in names.values() and label not in names:
            copy += 1
            name = f"{plain}-{copy}"
        names.setdefault(label, name)
    return names
