"""One run of several that a command makes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedwidth.settings import Settings


@dataclass(frozen=True)
class Job:
    """Runs that differ in their seed alone share a label, and are one row of the table."""

    label: str
    title: str
    settings: Settings
    folder: Path
