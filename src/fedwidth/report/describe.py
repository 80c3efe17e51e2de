"""Everything the page shows about some entries, as one block of data that page and figures are drawn from."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fedwidth
from fedwidth.config.given import describe_given
from fedwidth.devices.capacity import describe_mix
from fedwidth.methods import methods
from fedwidth.objectives.metric import Measure
from fedwidth.plan.plan import Plan
from fedwidth.report.attendance import attendance_view
from fedwidth.report.client_views import devices_view, gains_views, merge_equal, split_view, widths_views
from fedwidth.report.comparison_views import (
    classes_view,
    comparison_view,
    find_about,
    grid_view,
    measure_of_page,
    reached_view,
)
from fedwidth.report.coverage_view import Frame, count_training, pack
from fedwidth.report.entries import CURVES, Entry, curve_of, spread, thin_curve
from fedwidth.report.privacy_words import epsilon_of, privacy_sentences
from fedwidth.report.rebuild import ModelRebuilder, Rebuilt, said
from fedwidth.report.runs import Run, number

MAX_POINTS, MIN_POINTS, POINTS_IN_ALL = 400, 120, 12_000
"""How many points one line has, at most and at least, and all lines of a metric: a page of 50 lines loads at once."""
MAX_GRIDS = 8
"""How many entries the page shows the coverage of."""
MAX_REBUILT = 24
"""How many entries have their model built again, to see what it costs and which weights were trained."""

Description = dict[str, Any]
Recall = Callable[[Hashable, Sequence[Run], Callable[[], Any]], Any]
"""A function of (what, of which runs, how to make it) that returns what it made before of runs that have not changed
since, or makes it now."""


def make_now(what: Hashable, runs: Sequence[Run], make: Callable[[], Any]) -> Any:
    """A `Recall` that remembers nothing and always makes it."""
    del what, runs
    return make()


def describe(
    entries: Sequence[Entry],
    *,
    folders: Sequence[Path] = (),
    rebuilder: ModelRebuilder | None = None,
    recall: Recall = make_now,
) -> Description:
    """Everything the page shows. `folders` are those that were asked for: one alone may say what its runs are about."""
    folder_of_all, about = find_about(folders)
    rebuilder = rebuilder or ModelRebuilder()
    most = max(MIN_POINTS, min(MAX_POINTS, POINTS_IN_ALL // max(1, len(entries))))
    late = f"only the first {MAX_REBUILT} entries are rebuilt"
    built = [
        recall("model", entry.runs[:1], partial(rebuilder.rebuild, entry.first)) if position < MAX_REBUILT else late
        for position, entry in enumerate(entries)
    ]
    runs = [run for entry in entries for run in entry.runs]
    metric = measure_of_page(entries)
    return {
        "version": fedwidth.__version__,
        "points": most,
        "entries": [
            recall(("entry", e.label, most, metric), e.runs, partial(_entry, e, most, metric)) for e in entries
        ],
        "runs": [_run(run, position, metric) for position, entry in enumerate(entries) for run in entry.runs],
        "measure": metric.facts(),
        "comparison": comparison_view(entries, about),
        "grid": grid_view(entries, folder_of_all, about),
        "reached": reached_view(entries),
        "classes": classes_view(entries),
        "gains": gains_views(entries),
        "widths": widths_views(entries, built),
        "attendance": [
            {"entry": position, **view} for position, e in enumerate(entries) if (view := attendance_view(e.first))
        ],
        "devices": merge_equal(enumerate(map(devices_view, entries, built))),
        "splits": merge_equal(enumerate(split_view(entry.first) for entry in entries)),
        "coverage": recall("coverage", runs, partial(_coverage, entries, built, recall)),
    }


def _coverage(entries: Sequence[Entry], built: Sequence[Rebuilt | str], recall: Recall) -> Description:
    views: list[tuple[int, Plan, list[Frame]]] = []
    skipped = []
    for position, (entry, model) in enumerate(zip(entries, built, strict=True)):
        if isinstance(model, str):
            skipped.append({"entry": position, "reason": model})
        elif len(views) == MAX_GRIDS:
            skipped.append({"entry": position, "reason": f"the page shows {MAX_GRIDS} at most"})
        elif isinstance(frames := recall("frames", entry.runs[:1], partial(_frames, entry.first, model)), str):
            skipped.append({"entry": position, "reason": frames})
        else:
            views.append((position, model.plan, frames))
    return {"views": pack(views), "skipped": skipped}


def _frames(run: Run, model: Rebuilt) -> list[Frame] | str:
    try:
        return count_training(run, model) or "its metrics do not say which clients trained"
    except Exception as error:  # metrics may name what the method refuses
        return said(error)


def _entry(entry: Entry, most: int, metric: Measure) -> dict[str, Any]:
    run = entry.first
    other = run.measure != metric
    notes = [f"it is measured by {run.measure.title}, which this page does not tell"] if other else []
    known = methods().get(run.method)
    curves = {}
    for name in CURVES:
        if (other and "accuracy" in name) or (curve := curve_of(entry, name)) is None:
            continue
        seen = thin_curve(curve, most)
        banded = bool((seen.low != seen.high).any()) and len(entry.runs) > 1
        curves[name] = {
            "measured": len(curve.rounds),
            "rounds": seen.rounds.tolist(),
            "bytes": [_short(v) for v in seen.sent],
            "macs": [_short(v) for v in seen.macs],
            "mean": [_short(v) for v in seen.mean],
            "band": [[_short(v) for v in side] for side in (seen.low, seen.high)] if banded else None,
        }
    return {
        "id": str(run.folder),
        "label": entry.label,
        "method": run.method,
        "title": known.title if known else run.method,
        "answers": run.setting("answers", ""),
        "data": run.setting("given.data", "") or run.setting("data.name", "") or "unknown data",
        "partition": run.setting("given.partition", "") or run.setting("data.partition", ""),
        "model": run.setting("given.model", "") or run.setting("model.name", ""),
        "width": run.setting("model.width", 1.0),
        "capacities": _mix(run.setting("devices.capacities")),
        "clients": run.setting("data.clients", 0) or None,
        "per_round": run.setting("devices.per_round", 0) or None,
        "rounds": run.rounds,
        "seeds": [r.seed for r in entry.runs],
        "unfinished": [{"seed": r.seed, "done": r.done, "rounds": r.rounds} for r in entry.runs if not r.finished],
        "accuracy": spread([_told(r, "global_accuracy", metric) for r in entry.runs]),
        "validation": spread([_told(r, "validation_accuracy", metric) for r in entry.runs]),
        "local": spread([_told(r, "local_accuracy", metric) for r in entry.runs]),
        "loss": spread([r.final("global_loss") for r in entry.runs]),
        "seconds": spread([r.final("seconds") for r in entry.runs]),
        "curves": curves,
        "privacy": privacy_sentences(run),
        "notes": [*notes, *(f"{r.folder.name}: {note}" for r in entry.runs for note in r.notes)],
    }


def _told(run: Run, key: str, metric: Measure) -> float:
    """A number at the end of a run, where it measures what the page tells."""
    return run.final(key) if run.measure == metric else math.nan


def _run(run: Run, entry: int, metric: Measure) -> dict[str, Any]:
    found = [line["global_accuracy"] for line in run.metrics if isinstance(line.get("global_accuracy"), float)]
    told = [value for value in found if math.isfinite(value)] if run.measure == metric else []
    version = (run.summary or {}).get("version")
    folder = str(run.folder)
    given = run.setting("given", {})
    again = f"fedwidth run {shlex.quote(folder + '/config.toml')} --out {shlex.quote(folder + '-again')}"
    return {
        "entry": entry,
        "seed": run.seed,
        "done": run.done,
        "rounds": run.rounds,
        "finished": run.finished,
        "accuracy": _told(run, "global_accuracy", metric),
        "best": max(told, key=lambda value: metric.sign * value, default=math.nan),
        "local": _told(run, "local_accuracy", metric),
        "loss": run.final("global_loss"),
        "validation": _told(run, "validation_accuracy", metric),
        "sent_up": sum(number(line.get("bytes_up")) for line in run.metrics) if run.metrics else math.nan,
        "sent": run.spent[-1][0] if run.spent else math.nan,
        "macs": run.spent[-1][1] if run.spent else math.nan,
        "epsilon": epsilon_of(run),
        "seconds": run.final("seconds"),
        "version": version if isinstance(version, str) else "",
        "folder": folder,
        "command": f"# {describe_given(given)}: run its program again" if given else again,
        "config": run.config_text,
    }


def _mix(written: Any) -> str:
    """The capacities that a config names, in short; empty where they make no sense."""
    listed = isinstance(written, list) and all(isinstance(each, float) and math.isfinite(each) for each in written)
    return describe_mix(written) if listed or isinstance(written, str) else ""


def _short(value: float) -> float:
    """A number with five digits, as many as a screen can show."""
    return float(f"{value:.5g}")
