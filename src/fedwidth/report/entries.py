"""What is compared: an entry is one setting, run with one or several seeds, and is one line in every picture."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwidth.config.influence import ROUNDING, experiment_of
from fedwidth.methods import methods
from fedwidth.report.runs import Run, number
from fedwidth.report.thin import thin

MAY_DIFFER = ("seed", *ROUNDING)
"""Runs that have one name and differ in these settings alone are repetitions of one entry."""

CURVES = ("global_accuracy", "validation_accuracy", "local_accuracy", "global_loss", "train_loss")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Entry:
    """Runs of one setting that differ in their seed alone, and the label they have in every picture."""

    label: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The run that stands for the others where one must."""
        return self.runs[0]


@dataclass(frozen=True)
class Curve:
    """A metric over the rounds: the mean over seeds, and the smallest and largest of them."""

    rounds: NDArray[np.int64]
    sent: Floats
    """Bytes sent so far, both ways."""
    macs: Floats
    """Multiply-adds so far."""
    mean: Floats
    low: Floats
    high: Floats

    def take(self, points: NDArray[np.intp]) -> Curve:
        """The curve at some of its points alone."""
        return Curve(*(getattr(self, name)[points] for name in self.__dataclass_fields__))


def group_runs(runs: Sequence[Run]) -> list[Entry]:
    """The entries of these runs, in their order; two runs of one setting and one seed are two entries."""
    found: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        shared = [run.config.get("name", ""), experiment_of(run.config, without=MAY_DIFFER)]
        key = json.dumps(shared, sort_keys=True, default=str) if run.config else str(run.folder)
        copy = 0
        while any(other.seed == run.seed for other in found.get((key, copy), [])):
            copy += 1
        found.setdefault((key, copy), []).append(run)
    groups = [tuple(group) for group in found.values()]
    return [Entry(label, group) for label, group in zip(_labels(groups), groups, strict=True)]


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, sample standard deviation, smallest and largest of the finite values, and how many were not finite."""
    finite = [value for value in values if math.isfinite(value)]
    return {
        "mean": statistics.fmean(finite) if finite else math.nan,
        "deviation": statistics.stdev(finite) if len(finite) > 1 else None,
        "low": min(finite, default=math.nan),
        "high": max(finite, default=math.nan),
        "count": len(finite),
        "lost": len(values) - len(finite),
    }


def curve_of(entry: Entry, metric: str) -> Curve | None:
    """The metric at every round in which a seed of the entry measured it; None where none did.

    A mean over seeds of which one is not finite is not finite either: a run that diverged stays visible as a gap.
    """
    found = [
        (line["round"], number(line[metric]), *spent)
        for run in entry.runs
        for line, spent in zip(run.metrics, run.spent, strict=True)
        if line.get(metric) is not None
    ]
    if not found:
        return None
    values = np.array(found)
    values = values[values[:, 0].argsort(kind="stable")]
    values[~np.isfinite(values)] = math.nan
    rounds, starts, seeds = np.unique(values[:, 0].astype(np.int64), return_index=True, return_counts=True)
    mean, sent, macs = (np.add.reduceat(values[:, 1:], starts) / seeds[:, None]).T
    low, high = np.minimum.reduceat(values[:, 1], starts), np.maximum.reduceat(values[:, 1], starts)
    return Curve(rounds, sent, macs, mean, low, high)


def thin_curve(curve: Curve, most: int) -> Curve:
    """The curve at the points worth drawing, at most `most` of them."""
    banded = not np.array_equal(curve.low, curve.high, equal_nan=True)
    columns = [curve.mean, curve.low, curve.high] if banded else [curve.mean]
    return curve.take(thin(columns, most))


def _labels(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Short names that tell entries apart: the name in the settings, else the path, else the method; more if needed."""

    def title(run: Run) -> str:
        found = methods().get(run.method)
        return found.title if found else run.method

    firsts = [group[0] for group in groups]
    labels = [run.setting("name", "") or run.short_path or title(run) for run in firsts]
    for describe in (title, lambda run: run.short_path, lambda run: str(run.folder), lambda run: f"seed {run.seed}"):
        twice = {label for label in labels if labels.count(label) > 1}
        labels = [
            f"{label} · {describe(run)}" if label in twice and describe(run) and describe(run) not in label else label
            for label, run in zip(labels, firsts, strict=True)
        ]
    return labels
