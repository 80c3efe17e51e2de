"""The figures of the page drawn with matplotlib, from the same data; None where there is nothing to draw."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwidth.objectives.metric import Measure
from fedwidth.report.describe import Description
from fedwidth.report.plotting import COLOURS, HEAT, clip, draw_lines, heat_maps, new_figure, new_panels

METRICS = {
    "accuracy": "global_accuracy",
    "validation-accuracy": "validation_accuracy",
    "local-accuracy": "local_accuracy",
    "loss": "global_loss",
    "train-loss": "train_loss",
}
TITLES = {
    "global_accuracy": "test accuracy [%]",
    "validation_accuracy": "validation accuracy [%]",
    "local_accuracy": "accuracy [%] on clients' own data",
    "global_loss": "test loss",
    "train_loss": "training loss",
    "rounds": "round",
    "bytes": "bytes sent, both ways",
    "macs": "multiply-adds of all clients",
    "evenness": "evenness (Jain's index)",
    "share": "weights ever trained [%]",
}
MAX_PANELS = 12
"""How many panels one figure has at most."""


def draw_ranking(data: Description) -> Any:
    """The test accuracy of each entry after the last round: mean and range over seeds, the best on top."""
    known = [(p, e) for p, e in enumerate(data["entries"]) if math.isfinite(e["accuracy"]["mean"])]
    measure = Measure(**data["measure"])
    known.sort(key=lambda pair: measure.sign * pair[1]["accuracy"]["mean"])
    if not known:
        return None
    figure, plot = new_figure(6.4, 0.8 + 0.32 * len(known))
    for row, (position, entry) in enumerate(known):
        found = {key: measure.scaled(entry["accuracy"][key]) for key in ("low", "high", "mean")}
        plot.plot([found["low"], found["high"]], [row, row], color=COLOURS[position % 8], linewidth=5, alpha=0.3)
        plot.plot(found["mean"], row, "o", color=COLOURS[position % 8])
    plot.set_yticks(range(len(known)), [clip(entry["label"]) for _, entry in known])
    if measure.percent:
        plot.set_xlim(0, 100)  # a part of the axis would make small differences look large
    plot.set_xlabel(f"test {_title(measure)} after the last round; bars: range over seeds")
    return figure


def draw_curves(data: Description, metric: str, axis: str) -> Any:
    """One metric of every entry over rounds, bytes or operations: mean and range over seeds."""
    measure = Measure(**data["measure"])
    told = "accuracy" in metric
    unit = 100 if told and measure.percent else 1
    title = TITLES[metric].replace("accuracy [%]", _title(measure)).replace("accuracy", measure.title)
    lines = []
    for position, entry in enumerate(data["entries"]):
        if (curve := entry["curves"].get(metric)) is not None:
            band = [unit * _floats(side) for side in curve["band"]] if curve["band"] else None
            lines.append((position, entry["label"], _floats(curve[axis]), unit * _floats(curve["mean"]), band))
    return _whole(draw_lines(lines, TITLES[axis], title), unit == 100)


def draw_counted(data: Description, key: str) -> Any:
    """Evenness of training, or the share of weights ever trained, over rounds."""
    unit = 100 if key == "share" else 1
    lines = [
        (v["entry"], data["entries"][v["entry"]]["label"], _floats(v["rounds"]), unit * _floats(v[key]), None)
        for v in data["coverage"]["views"]
    ]
    return draw_lines(lines, "round", TITLES[key], log=True)


def draw_coverage(data: Description) -> Any:
    """How often each weight of one layer was trained, after the first, a middle and the last round; entries side by
    side."""
    views = data["coverage"]["views"]
    if not views:
        return None
    name = views[0]["first"]
    views = [view for view in views if name in view["layers"]]
    last = max(view["rounds"][-1] for view in views)
    rounds = sorted({1, round(math.sqrt(last)), last})
    grids = {}
    for column, view in enumerate(views):
        layer = view["layers"][name]
        cells = np.frombuffer(zlib.decompress(base64.b64decode(layer["frames"])), np.uint8)
        frames = cells.reshape(len(view["rounds"]), *layer["cells"]) / 255
        for row, stop in enumerate(rounds):
            at = max((position for position, found in enumerate(view["rounds"]) if found <= stop), default=0)
            grids[row, column] = frames[at]
    labels = [data["entries"][view["entry"]]["label"] for view in views]
    shape = " × ".join(map(str, views[0]["layers"][name]["shape"]))
    titles = [f"after round {stop}" for stop in rounds]
    return heat_maps(grids, labels, titles, f"{name} ({shape}): units out down, units in across")


def draw_gains(data: Description) -> Any:
    """Distribution of local accuracy over clients by capacity, a panel for each entry."""
    views, measure = data["gains"]["views"][:MAX_PANELS], Measure(**data["measure"])
    low, high = measure.scaled(data["gains"]["low"]), measure.scaled(data["gains"]["high"])
    if not views:
        return None
    columns = min(4, len(views))
    most = max(len(view["levels"]) for view in views)
    figure, plots = new_panels(math.ceil(len(views) / columns), columns, 2.6, 0.8 + 0.32 * most)
    flat = [plot for line in plots for plot in line]
    for plot, view in zip(flat, views, strict=False):
        colour = COLOURS[view["entry"] % 8]
        for row, level in enumerate(reversed(view["levels"])):
            edges = np.linspace(low, high, len(level["bins"]) + 1)
            heights = 0.75 * np.array(level["bins"]) / max(1, *level["bins"])
            plot.bar(edges[:-1], heights, np.diff(edges) * 0.9, row, align="edge", color=colour, alpha=0.45)
            middle = [measure.scaled(level["quantiles"][at]) for at in (1, 3)]
            plot.plot(middle, [row - 0.07] * 2, color=colour, linewidth=2.5)
            plot.plot(measure.scaled(level["mean"]), row - 0.07, "o", color=colour, markersize=4)
        plot.set_yticks(
            range(len(view["levels"])), [_capacity(level["capacity"]) for level in reversed(view["levels"])]
        )
        end = high + 0.005 * (high - low) if not measure.percent else 100.5
        plot.set(xlim=(low, end), ylim=(-0.3, most), xlabel=f"local {_title(measure)}")
        plot.set_title(clip(data["entries"][view["entry"]]["label"], 30), fontsize=9)
    for plot in flat[len(views) :]:
        plot.set_visible(False)
    return figure


def draw_widths(data: Description) -> Any:
    """Accuracy of the server's sub-model at each width."""
    lines, measure = [], Measure(**data["measure"])
    unit = measure.scaled(1.0)
    for view in data["widths"]["views"]:
        levels = view["levels"]
        low, mean, high = (unit * _floats([level[key] for level in levels]) for key in ("low", "mean", "high"))
        band = [low, high] if any(level["count"] > 1 for level in levels) else None
        x = _floats([level["capacity"] for level in levels])
        lines.append((view["entry"], data["entries"][view["entry"]]["label"], x, mean, band))
    title = "width, as a share of the server's model"
    drawn = draw_lines(lines, title, f"test {_title(measure)}", log=True, ticks=_capacity)
    return _whole(drawn, measure.percent)


def draw_devices(data: Description) -> Any:
    """The capacity mix, and what it costs a client against everyone at the smallest and at the full width."""
    views = [view for view in data["devices"] if len(view["levels"]) > 1][:MAX_PANELS]
    if not views:
        return None
    figure, plots = new_panels(len(views), 2, 3.3, 2.2)
    for (left, right), view in zip(plots, views, strict=True):
        names = ", ".join(clip(data["entries"][entry]["label"], 20) for entry in view["entries"][:4])
        counts = [level["count"] for level in view["levels"]]
        left.bar(range(len(counts)), [100 * count / sum(counts) for count in counts], color=COLOURS[0], width=0.7)
        left.set_xticks(range(len(counts)), [_capacity(level["capacity"]) for level in view["levels"]])
        left.set(xlabel="width", ylabel=f"share of {view['counted']} [%]")
        left.set_title(names, fontsize=9, loc="left")
        right.set_visible(bool(view["mean"]))
        if not view["mean"]:
            continue
        kinds = (("parameters", "parameters"), ("bytes", "bytes"), ("macs", "multiply-adds"))
        smallest = _capacity(view["levels"][-1]["capacity"])
        cases = ((f"all at {smallest}", "smallest", 5), ("this mix", "mean", 0), ("all at full width", "full", 2))
        for shift, (label, key, colour) in enumerate(cases):
            shares = [100 * view[key][kind] / max(1, view["full"][kind]) for kind, _ in kinds]
            bars = right.bar(np.arange(3) + 0.27 * (shift - 1), shares, 0.25, label=label, color=COLOURS[colour])
            right.bar_label(bars, fmt="%.3g", fontsize=7)
        right.set_xticks(range(3), [title for _, title in kinds])
        right.set_ylabel("per client, of full width [%]")
        right.set_ylim(0, 118)
        right.legend(fontsize=7, loc="upper center", ncols=3, bbox_to_anchor=(0.5, 1.18), columnspacing=1)
    return figure


def draw_split(data: Description) -> Any:
    """Which client holds how many samples of which labels, and how many in all."""
    if not data["splits"]:
        return None
    held_alike = {
        str([(c["labels"], c.get("counts"), c["samples"]) for c in view["clients"]]): view
        for view in reversed(data["splits"])
    }
    views = list(held_alike.values())[::-1][:4]  # devices may differ where the data does not
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap, PowerNorm

    shades = LinearSegmentedColormap.from_list("held", HEAT).with_extremes(bad="#f1f3f6")
    figure, plots = new_panels(2 * len(views), 1, 6.4, 1.5, heights=[3, 1] * len(views))
    for at, view in enumerate(views):
        picture, bars = plots[2 * at][0], plots[2 * at + 1][0]
        held = np.zeros((view["drawn"], len(view["clients"])))
        for position, client in enumerate(view["clients"]):
            held[client["labels"], position] = client.get("counts", 1)
        if view["most"]:
            norm = PowerNorm(0.5, 0, view["most"])
            shown = picture.imshow(
                np.ma.masked_equal(held, 0), cmap=shades, norm=norm, aspect="auto", interpolation="nearest"
            )
            figure.colorbar(shown, ax=[picture, bars], pad=0.01).set_label("samples of a label")
        else:  # a run of an earlier version
            picture.imshow(held, cmap=ListedColormap(["#f1f3f6", COLOURS[0]]), aspect="auto", interpolation="nearest")
        picture.set(ylabel="label", xticks=[])
        picture.grid(False)
        names = ", ".join(clip(data["entries"][entry]["label"], 24) for entry in view["entries"][:3])
        more = f" and {len(view['entries']) - 3} more" if len(view["entries"]) > 3 else ""
        picture.set_title(names + more, fontsize=9, loc="left")
        bars.bar(range(held.shape[1]), [client["samples"] for client in view["clients"]], 0.85, color=COLOURS[2])
        sampled = f"{held.shape[1]} of {view['total']} clients" if held.shape[1] < view["total"] else "clients"
        bars.set(xlim=picture.get_xlim(), xticks=[], ylabel="samples", xlabel=sampled)
    return figure


def _title(measure: Measure) -> str:
    """What an axis says of a metric."""
    return f"{measure.title} [%]" if measure.percent else measure.title


def _whole(figure: Any, percent: bool) -> Any:
    """The figure, with an axis from 0 to 100 where it shows percentages."""
    if figure and percent:
        figure.axes[0].set_ylim(0, 100)
    return figure


def _floats(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _capacity(value: float | None) -> str:
    """A width as people write it.

    >>> _capacity(0.0625), _capacity(1.0), _capacity(None)
    ('1/16', '1', 'varying')
    """
    return "varying" if value is None else str(Fraction(value).limit_denominator(1000))
