"""about.json: what the runs in a folder are about, for whoever shows them together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedwidth.run.checkpoint import write_whole

NAME = "about.json"


@dataclass(frozen=True)
class About:
    """The title of some runs, and of a sweep what they were swept over."""

    title: str = ""
    over: Sequence[tuple[str, Sequence[str]]] = ()
    """The settings of a sweep, each with its values; empty where the runs are those of a recipe."""
    cells: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The folder of each combination, as seen from the one of the sweep, with its values in the order of `over`."""

    def write(self, folder: Path) -> None:
        """Write about.json into a folder; where there is nothing to say, remove what was said of earlier runs."""
        if self.title or self.over:
            content = {"title": self.title, "over": self.over, "cells": self.cells}
            write_whole(folder / NAME, json.dumps(content, indent=2) + "\n")
        else:
            (folder / NAME).unlink(missing_ok=True)


def read_about(folder: Path) -> About:
    """What a folder says of itself; nothing where it is silent or cannot be read."""
    try:
        found: Any = json.loads((folder / NAME).read_text(encoding="utf-8"))
        over = tuple((str(name), tuple(map(str, values))) for name, values in found["over"])
        cells = {str(cell): tuple(map(str, values)) for cell, values in found["cells"].items()}
        return About(str(found["title"]), over, {p: v for p, v in cells.items() if len(v) == len(over)})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return About()
