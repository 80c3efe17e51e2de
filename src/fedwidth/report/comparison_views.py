"""What the page says of entries beside each other: sentences, gains, targets reached, classes, the grid of a sweep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from fedwidth.analysis.comparison import Comparison, Row, accuracy_text
from fedwidth.analysis.yardsticks import Gain
from fedwidth.config.method_settings import method_of
from fedwidth.config.schema import build
from fedwidth.errors import FedwidthError
from fedwidth.evaluation.samples import samples_to_report
from fedwidth.objectives.metric import ACCURACY, Measure
from fedwidth.report.entries import Entry
from fedwidth.report.runs import Run, number
from fedwidth.run.about import About, read_about
from fedwidth.settings import Settings

View = dict[str, Any]

TARGETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
"""Accuracies that runs may be asked to reach."""
MAX_TARGETS = 6
MAX_CLASSES = 40


def compare_entries(entries: Sequence[Entry], about: About) -> Comparison:
    """The entries compared, by their finished runs."""

    metric = measure_of_page(entries)

    def by_seed(entry: Entry, key: str) -> dict[int, float]:
        if entry.first.measure != metric:
            return {}
        found = {run.seed: metric.scaled(run.final(key)) for run in entry.runs if run.finished}
        return {seed: value for seed, value in found.items() if math.isfinite(value)}

    rows = [Row.of(each.label, _settings(each.first), partial(by_seed, each)) for each in entries]
    return Comparison(tuple(rows), best_leads=bool(about.over), metric=metric)


def measure_of_page(entries: Sequence[Entry]) -> Measure:
    """What a page about these entries tells: what the first of them measures."""
    return entries[0].first.measure if entries else ACCURACY


def comparison_view(entries: Sequence[Entry], about: About) -> View:
    """The title, which entry leads, sentences about the others, and the gain and yardsticks of each entry."""
    if not entries:
        return {"title": about.title, "lead": 0, "leading": "", "sentences": [], "yardsticks": [], "rows": []}
    compared = compare_entries(entries, about)
    return {
        "title": about.title,
        "lead": compared.lead,
        "leading": compared.leading_sentence(),
        "sentences": compared.difference_sentences(),
        "yardsticks": compared.yardstick_sentences(),
        "rows": [
            {
                "yardsticks": mine,
                **_gain_view(gain),
                "validation": accuracy_text(row.validation, compared.metric) if row.validation else "",
                "together": _together_view(row, together, compared.metric),
            }
            for row, mine, gain, together in zip(
                compared.rows, compared.yardsticks, compared.gains, compared.gains_together, strict=True
            )
        ],
    }


def _together_view(row: Row, gain: Gain | None, metric: Measure) -> View | None:
    """What the widths of a row reach where they answer together, and what that gains; None where they do not."""
    if not row.together:
        return None
    return {"which": row.answering, "accuracy": accuracy_text(row.together, metric), **_gain_view(gain)}


def _gain_view(gain: Gain | None) -> View:
    """A gain in words: how much, over which yardstick, and whether it is decided; empty ones where there is none."""
    if gain is None:
        return {"gain": "", "over": "", "verdict": ""}
    return {"gain": str(gain.difference), "over": gain.kind, "verdict": gain.difference.verdict}


def reached_view(entries: Sequence[Entry]) -> View:
    """After how many rounds, bytes and seconds the mean over seeds first reached each target, where it did."""
    metric = measure_of_page(entries)
    curves = [_accuracies(entry) if entry.first.measure == metric else [] for entry in entries]
    targets = _targets([value for curve in curves for _, value in curve], metric)
    return {
        "targets": targets,
        "rows": [[_reach(e, c, t, metric) for t in targets] for e, c in zip(entries, curves, strict=True)],
    }


def _targets(measured: Sequence[float], metric: Measure) -> list[float]:
    """Values to ask for, the best last: round accuracies, or of another metric steps from the worst to the best."""
    if not measured:
        return []
    if metric.percent:
        return [target for target in TARGETS if target <= max(measured)][-MAX_TARGETS:]
    worst, best = (min(measured), max(measured))[:: metric.sign]
    steps = [float(f"{worst + (best - worst) * step / MAX_TARGETS:.3g}") for step in range(1, MAX_TARGETS + 1)]
    return list(dict.fromkeys(target for target in steps if metric.sign * target <= metric.sign * best)) or [best]


def classes_view(entries: Sequence[Entry]) -> View | None:
    """The accuracy on each class at the end, over seeds; None where nobody measured it."""
    rows = []
    for position, entry in enumerate(entries):
        found = [mine for run in entry.runs if (mine := _class_accuracy(run))]
        classes = min((len(mine) for mine in found), default=0)
        means = [fmean(known) if (known := _finite(mine[c] for mine in found)) else math.nan for c in range(classes)]
        if means:
            rows.append({"entry": position, "means": means[:MAX_CLASSES], "classes": classes})
    return {"rows": rows} if rows else None


def grid_view(entries: Sequence[Entry], folder: Path, about: About) -> View | None:
    """The entries of a sweep by the settings it was over: the last across, the others down."""
    if not about.over:
        return None
    by_values = {values: (folder / name).resolve() for name, values in about.cells.items()}
    positions = {run.folder.resolve(): position for position, entry in enumerate(entries) for run in entry.runs}
    *down, (across, columns) = about.over

    def find(values: Sequence[str]) -> int | None:
        cell = by_values.get(tuple(values))
        return next((position for run, position in positions.items() if cell and run.is_relative_to(cell)), None)

    rows = list(product(*(values for _, values in down)))
    return {
        "across": across,
        "down": [name for name, _ in down],
        "columns": list(columns),
        "rows": [list(row) for row in rows],
        "cells": [[find([*row, column]) for column in columns] for row in rows],
    }


def find_about(folders: Sequence[Path]) -> tuple[Path, About]:
    """What the runs are about: of several folders nothing, as they have no title in common."""
    if len(folders) != 1:
        return Path(), About()
    return Path(folders[0]), read_about(Path(folders[0]))


def _settings(run: Run) -> Settings | None:
    """The settings of a run; None where they make no sense here, or name a method that only another program has."""
    try:
        settings = build(Settings, run.settings)
        method_of(settings)
    except FedwidthError:
        return None
    return settings


def _accuracies(entry: Entry) -> list[tuple[int, float]]:
    """The rounds in which every seed was measured, each with the mean accuracy over seeds."""
    found: dict[int, list[float]] = {}
    for run in entry.runs:
        for line in run.metrics:
            if math.isfinite(accuracy := number(line.get(samples_to_report(line).key()))):
                found.setdefault(line["round"], []).append(accuracy)
    return [(round, fmean(values)) for round, values in sorted(found.items()) if len(values) == len(entry.runs)]


def _reach(entry: Entry, curve: Sequence[tuple[int, float]], target: float, metric: Measure) -> View | None:
    wanted = metric.sign * target
    round = next((round for round, value in curve if metric.sign * value >= wanted), None)
    if round is None:
        return None
    spent: list[tuple[float, float, float]] = []
    for run in entry.runs:
        position = next(position for position, line in enumerate(run.metrics) if line["round"] == round)
        simulated = sum(number(line.get("device_seconds")) for line in run.metrics[: position + 1])
        spent.append((run.spent[position][0], number(run.metrics[position].get("seconds")), simulated))
    sent, seconds, device_seconds = (fmean(column) for column in zip(*spent, strict=True))
    found = {"round": round, "sent": sent, "seconds": seconds, "device_seconds": device_seconds}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _class_accuracy(run: Run) -> list[float]:
    """The accuracy on each class that the run wrote down last."""
    for table in (run.summary or {}, *reversed(run.metrics)):
        found = table.get("class_accuracy")
        if isinstance(found, dict):
            found = [found.get(str(c)) for c in range(len(found))]
        if isinstance(found, list) and found:
            return [number(value) for value in found]
    return []


def _finite(values: Any) -> list[float]:
    return [value for value in values if math.isfinite(value)]
