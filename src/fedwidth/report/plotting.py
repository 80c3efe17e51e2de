"""What all figures share: colours, lines over an axis, grids of heat maps, and writing them down."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwidth.errors import OptionError
from fedwidth.files import write_whole

FORMATS = ("png", "svg")
COLOURS = ("#2a6fdb", "#d9730d", "#0f8a5f", "#c0348b", "#7552e0", "#9a7500", "#0b8a9a", "#c93c3c")
DASHES = ("-", "--", ":", "-.")
NEVER, HEAT = "#f4d5cb", ("#d7e5fa", "#4d8be0", "#0a2c6b")
STYLE: Any = {
    "svg.hashsalt": "fedwidth",  # equal data, equal names inside an SVG
    "svg.fonttype": "none",
    "font.size": 9,
    "text.parse_math": False,  # a run may be called $x
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}


def save(out: Path, name: str, draw: Any, *arguments: Any) -> list[Path]:
    """Let `draw` make a figure, write it in every format, and return the files; none where it makes None."""
    try:
        import matplotlib
    except ImportError:
        raise OptionError("figures need matplotlib, which is not installed") from None
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"cannot write to {out}: {error.strerror or error}") from error
    written = []
    with matplotlib.rc_context(STYLE):
        figure = draw(*arguments)
        for format in FORMATS if figure else ():
            content = io.BytesIO()
            # Equal data gives equal files: no date in them.
            dated = {"Date": None} if format == "svg" else {}
            figure.savefig(content, format=format, dpi=160, metadata=dated)
            figure.set_layout_engine("none")  # laid out once; the other format is the same
            path = Path(out) / f"{name}.{format}"
            write_whole(path, content.getvalue())
            written.append(path)
    return written


Line = tuple[int, str, Any, Any, Any]
"""The number of its colour, its label, the values across and up, and its band (low, high) or None."""


def draw_lines(
    lines: Sequence[Line], x: str, y: str, *, log: bool = False, ticks: Callable[[float], str] | None = None
) -> Any:
    """A figure of these lines; None where none has a value to draw."""
    lines = [line for line in lines if np.isfinite(line[2]).any()]
    if not lines:
        return None
    figure, plot = new_figure(6.4, 4.0)
    plot_lines(plot, lines, log=log, ticks=ticks)
    plot.set(xlabel=x, ylabel=y)
    return figure


def plot_lines(
    plot: Any, lines: Sequence[Line], *, log: bool = False, ticks: Callable[[float], str] | None = None
) -> None:
    """Draw lines with their bands, and a legend; `ticks` writes the values of a logarithmic axis of powers of two."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    for position, label, across, up, band in lines:
        colour, dash = COLOURS[position % 8], DASHES[position // 8 % 4]
        mark = "o" if len(across) <= 12 else None
        plot.plot(across, up, color=colour, linestyle=dash, marker=mark, markersize=3.5, linewidth=1.6)
        plot.lines[-1].set_label("\u200b" + label)  # a label that begins with _ would be left out
        if band is not None:
            plot.fill_between(across, *band, color=colour, alpha=0.15, linewidth=0)
    if log:
        plot.set_xscale("log", base=2 if ticks else 10)
        plot.xaxis.set_major_locator(LogLocator(2) if ticks else LogLocator(10, subs=(1, 2, 5)))
        plot.xaxis.set_minor_formatter(NullFormatter())
        plot.xaxis.set_major_formatter(FuncFormatter(lambda v, _: ticks(v) if ticks else f"{v:g}"))
    elif max((np.nanmax(line[2], initial=0) for line in lines), default=0) >= 1e5:
        plot.xaxis.set_major_formatter(EngFormatter())
    if len(lines) <= 20:  # more names than that hide the lines
        plot.legend(fontsize="small", ncols=1 if len(lines) <= 8 else 2)


def heat_maps(
    grids: dict[tuple[int, int], NDArray[np.float64]], columns: Sequence[str], rows: Sequence[str], caption: str
) -> Any:
    """Grids of shares in rows and columns, coloured as on the page: never is a colour of its own."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    colours = LinearSegmentedColormap.from_list("trained", HEAT).with_extremes(bad=NEVER)
    figure, plots = new_panels(len(rows), len(columns), 1.75, 1.85)
    image = None
    for (row, column), grid in grids.items():
        plot = plots[row][column]
        shown = np.ma.masked_equal(grid, 0)
        image = plot.imshow(shown, cmap=colours, norm=PowerNorm(0.5, 0, 1), interpolation="nearest", aspect="auto")
        plot.set(xticks=[], yticks=[])
        plot.grid(False)
        plot.spines[:].set_visible(False)
        if row == 0:
            plot.set_title(clip(columns[column], 26), fontsize=9)
        if column == 0:
            plot.set_ylabel(rows[row])
    bar = figure.colorbar(image, ax=[plot for line in plots for plot in line], shrink=0.6, pad=0.02)
    bar.set_label("share of client updates (pale red: never)")
    bar.outline.set_visible(False)
    figure.supxlabel(caption, fontsize=9)
    return figure


def new_figure(width: float, height: float) -> tuple[Any, Any]:
    """A figure of this many inches with one plot."""
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def new_panels(
    rows: int, columns: int, width: float, height: float, heights: Sequence[float] | None = None
) -> tuple[Any, Any]:
    """A figure with rows and columns of plots of this many inches each."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.0 + width * columns, 0.6 + height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, height_ratios=heights)


def clip(text: str, most: int = 40) -> str:
    """The text, shortened to at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
