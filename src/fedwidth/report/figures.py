"""The curves as PNG and SVG, for a paper or a slide."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedwidth.checkpoint import write_whole
from fedwidth.errors import OptionError
from fedwidth.report.entries import Entry, curve_of, group_runs
from fedwidth.report.runs import read_runs

FIGURES = {
    "accuracy": ("global_accuracy", "test accuracy [%]", 100.0),
    "local-accuracy": ("local_accuracy", "accuracy on clients' own data [%]", 100.0),
    "loss": ("global_loss", "test loss", 1.0),
    "train-loss": ("train_loss", "training loss", 1.0),
}
"""File name -> metric, what the axis says, and the factor to its unit."""

FORMATS = ("png", "svg")
COLOURS = ("#2a6fdb", "#d9730d", "#0f8a5f", "#c0348b", "#7552e0", "#9a7500", "#0b8a9a", "#c93c3c")
DASHES = ("-", "--", ":", "-.")


def write_figures(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write each curve over rounds, mean and band over seeds, into the folder `out`; a metric nobody measured is left
    out. Returns the files."""
    try:
        import matplotlib
    except ImportError:
        raise OptionError("figures need matplotlib, which is not installed") from None
    entries = group_runs(read_runs(folders))
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"cannot write to {out}: {error.strerror or error}") from error
    written = []
    # Equal runs give equal files: no date in them, and the same names inside an SVG.
    with matplotlib.rc_context({"svg.hashsalt": "fedwidth", "svg.fonttype": "none"}):
        for name, (metric, axis, unit) in FIGURES.items():
            figure = draw(entries, metric, axis, unit)
            for format in FORMATS if figure else ():
                content = io.BytesIO()
                dated = {"Date": None} if format == "svg" else {}
                figure.savefig(content, format=format, dpi=200, bbox_inches="tight", metadata=dated)
                path = Path(out) / f"{name}.{format}"
                write_whole(path, content.getvalue())
                written.append(path)
    return written


def draw(entries: Sequence[Entry], metric: str, axis: str, unit: float) -> Any:
    """A matplotlib figure of one metric, or None where no entry measured it."""
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    curves = [(place, entry, curve_of(entry, metric)) for place, entry in enumerate(entries)]
    figure = Figure(figsize=(6.4, 4.0))
    plot = figure.add_subplot()
    handles, labels = [], []
    for place, entry, curve in curves:
        if curve is None:
            continue
        colour, dash = COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]
        mark = "o" if len(curve.rounds) == 1 else None
        handles += plot.plot(curve.rounds, unit * curve.mean, color=colour, linestyle=dash, marker=mark, linewidth=1.6)
        labels.append(entry.label)
        if len(entry.runs) > 1:
            band = unit * curve.low, unit * curve.high
            plot.fill_between(curve.rounds, *band, color=colour, alpha=0.15, linewidth=0)
    if not handles:
        return None
    plot.set_xlabel("round")
    plot.set_ylabel(axis)
    plot.grid(alpha=0.25)
    plot.spines[["top", "right"]].set_visible(False)
    legend = plot.legend(handles, labels, frameon=False, fontsize="small")
    for text in legend.get_texts():
        text.set_parse_math(False)  # a run may be called $x
    return figure
