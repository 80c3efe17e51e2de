"""Every figure of the page as PNG and SVG, for a paper or a slide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedwidth.report import drawings
from fedwidth.report.describe import Description, describe
from fedwidth.report.entries import group_runs
from fedwidth.report.plotting import save
from fedwidth.report.runs import read_runs


def write_figures(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write each figure of the report on these folders into the folder `out`; one that would show nothing is left out.
    Returns the files."""
    data = describe(group_runs(read_runs(folders)), folders=folders)
    return [path for name, draw in _figures() for path in save(out, name, draw, data)]


def _figures() -> Iterator[tuple[str, Any]]:
    """(file name, what draws it from the page's data)"""
    yield "compared", drawings.compared
    for name, metric in drawings.METRICS.items():
        for axis, ending in (("rounds", ""), ("bytes", "-by-bytes"), ("macs", "-by-operations")):
            yield f"{name}{ending}", partial(_curves, metric=metric, axis=axis)
    yield "coverage", drawings.coverage
    yield "evenness", partial(_counted, key="evenness")
    yield "share-trained", partial(_counted, key="share")
    yield "who-gains", drawings.gains
    yield "widths", drawings.widths
    yield "devices", drawings.devices
    yield "split", drawings.split


def _curves(data: Description, *, metric: str, axis: str) -> Any:
    return drawings.curves(data, metric, axis)


def _counted(data: Description, *, key: str) -> Any:
    return drawings.counted(data, key)
