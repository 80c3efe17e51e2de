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
    """Write each figure of the report on these folders into the folder `out`, and return the files.

    A figure that would show nothing is left out.
    """
    data = describe(group_runs(read_runs(folders)), folders=folders)
    return [path for name, draw in _figures() for path in save(out, name, draw, data)]


def _figures() -> Iterator[tuple[str, Any]]:
    """The name of each figure's file, and the function that draws it from the page's data."""
    yield "compared", drawings.draw_ranking
    for name, metric in drawings.METRICS.items():
        for axis, ending in (("rounds", ""), ("bytes", "-by-bytes"), ("macs", "-by-operations")):
            yield f"{name}{ending}", partial(_curves, metric=metric, axis=axis)
    yield "coverage", drawings.draw_coverage
    yield "evenness", partial(_counted, key="evenness")
    yield "share-trained", partial(_counted, key="share")
    yield "who-gains", drawings.draw_gains
    yield "widths", drawings.draw_widths
    yield "devices", drawings.draw_devices
    yield "split", drawings.draw_split


def _curves(data: Description, *, metric: str, axis: str) -> Any:
    return drawings.draw_curves(data, metric, axis)


def _counted(data: Description, *, key: str) -> Any:
    return drawings.draw_counted(data, key)
