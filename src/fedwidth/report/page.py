"""report.html: everything the page shows as one block of data, and the page around it, in one file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import fedwidth
from fedwidth.checkpoint import write_whole
from fedwidth.errors import OptionError
from fedwidth.methods import methods
from fedwidth.report.coverage_view import Frame, best_layer, count_training, pack
from fedwidth.report.entries import CURVES, Entry, curve_of, drawn, group_runs, spread
from fedwidth.report.rebuild import Rebuilt, Workshop, said
from fedwidth.report.runs import Run, read_runs
from fedwidth.report.views import devices_view, gains_views, once, split_view, widths_views

SCRIPTS = ("dom.js", "chart.js", "coverage.js", "views.js", "table.js", "page.js")
MOST_POINTS, LEAST_POINTS, POINTS_IN_ALL = 400, 120, 12_000
"""Of one line, of one line of many, and of all lines of one metric: 50 lines still load at once."""
MOST_GRIDS = 8
MOST_REBUILT = 24


def write_report(folders: Sequence[Path], out: Path, *, own_models: bool = False) -> Path:
    """Write one self-contained page about every run in these folders, and return its path.

    `own_models` also rebuilds models that a config names as package.module:factory, which imports that code.
    """
    runs = read_runs(folders)
    if not runs:
        raise OptionError("a report needs at least one run folder")
    content = render(runs, own_models=own_models)
    try:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"cannot write to {Path(out).parent}: {error.strerror or error}") from error
    write_whole(Path(out), content.encode("utf-8", "replace"))
    return Path(out)


def render(runs: Sequence[Run], *, own_models: bool = False) -> str:
    """The page as text. Its scripts and styles are allowed by their hash, and nothing else may run or be fetched."""
    here = files("fedwidth.report")
    css = (here / "page.css").read_text(encoding="utf-8")
    js = "\n".join((here / name).read_text(encoding="utf-8") for name in SCRIPTS)
    js = f"(() => {{\n'use strict';\n{js}\n}})();"
    entries = group_runs(runs)
    parts = {
        "title": html.escape(f"{entries[0].label} · fedwidth"),
        "policy": f"default-src 'none'; script-src {_allowed(js)}; style-src {_allowed(css)}; base-uri 'none'",
        "css": css,
        "js": js,
        "data": embed(describe(entries, own_models=own_models)),
    }
    page = (here / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], page)  # one pass: data is never searched


def embed(data: Any) -> str:
    """JSON that is safe inside a script element: no character of it can end the element or start another.

    >>> embed({"name": "</script>", "loss": float("nan")})
    '{"name":"\\\\u003c/script\\\\u003e","loss":null}'
    """
    text = json.dumps(_plain(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def describe(entries: Sequence[Entry], *, own_models: bool = False) -> dict[str, Any]:
    """Everything the page shows."""
    workshop = Workshop(own_models=own_models)
    most = max(LEAST_POINTS, min(MOST_POINTS, POINTS_IN_ALL // len(entries)))
    late = f"only the first {MOST_REBUILT} entries are rebuilt"
    built = [workshop.rebuild(e.first) if place < MOST_REBUILT else late for place, e in enumerate(entries)]
    grids, skipped = _coverage(entries, built)
    return {
        "version": fedwidth.__version__,
        "points": most,
        "entries": [_entry(entry, most) for entry in entries],
        "runs": [_run(run, place) for place, entry in enumerate(entries) for run in entry.runs],
        "gains": gains_views(entries),
        "widths": widths_views(entries, built),
        "devices": once((place, devices_view(entry, built[place])) for place, entry in enumerate(entries)),
        "splits": once((place, split_view(entry.first)) for place, entry in enumerate(entries)),
        "coverage": {"views": grids, "skipped": skipped},
    }


def _coverage(entries: Sequence[Entry], built: Sequence[Rebuilt | str]) -> tuple[list[Any], list[Any]]:
    views: list[tuple[int, str, list[Frame]]] = []
    skipped = []
    for place, (entry, model) in enumerate(zip(entries, built, strict=True)):
        if isinstance(model, str):
            skipped.append({"entry": place, "reason": model})
        elif len(views) == MOST_GRIDS:
            skipped.append({"entry": place, "reason": f"the page shows {MOST_GRIDS} at most"})
        elif isinstance(frames := _frames(entry.first, model), str):
            skipped.append({"entry": place, "reason": frames})
        else:
            views.append((place, best_layer(model.plan, list(frames[-1].grids)), frames))
    return pack(views), skipped


def _frames(run: Run, model: Rebuilt) -> list[Frame] | str:
    try:
        return count_training(run, model) or "its metrics do not say which clients trained"
    except Exception as error:  # metrics may name what the method refuses
        return said(error)


def _entry(entry: Entry, most: int) -> dict[str, Any]:
    run = entry.first
    known = methods().get(run.method)
    curves = {}
    for metric in CURVES:
        if (curve := curve_of(entry, metric)) is not None:
            seen = drawn(curve, most)
            banded = bool((seen.low != seen.high).any()) and len(entry.runs) > 1
            curves[metric] = {
                "measured": len(curve.rounds),
                "rounds": seen.rounds.tolist(),
                "bytes": [_short(v) for v in seen.sent],
                "macs": [_short(v) for v in seen.macs],
                "mean": [_short(v) for v in seen.mean],
                "band": [[_short(v) for v in side] for side in (seen.low, seen.high)] if banded else None,
            }
    return {
        "label": entry.label,
        "method": run.method,
        "title": known.title if known else run.method,
        "answers": run.setting("answers", ""),
        "data": run.setting("data.name", "") or "unknown data",
        "partition": run.setting("data.partition", ""),
        "model": run.setting("model.name", ""),
        "width": run.setting("model.width", 1.0),
        "capacities": run.setting("devices.capacities", ""),
        "clients": run.setting("data.clients", 0) or None,
        "per_round": run.setting("devices.per_round", 0) or None,
        "rounds": run.rounds,
        "seeds": [r.seed for r in entry.runs],
        "unfinished": [{"seed": r.seed, "done": r.done, "rounds": r.rounds} for r in entry.runs if not r.finished],
        "accuracy": spread([r.final("global_accuracy") for r in entry.runs]),
        "local": spread([r.final("local_accuracy") for r in entry.runs]),
        "loss": spread([r.final("global_loss") for r in entry.runs]),
        "seconds": spread([r.final("seconds") for r in entry.runs]),
        "curves": curves,
        "notes": [f"{r.folder.name}: {note}" for r in entry.runs for note in r.notes],
    }


def _run(run: Run, entry: int) -> dict[str, Any]:
    accuracies = [line["global_accuracy"] for line in run.metrics if isinstance(line.get("global_accuracy"), float)]
    version = (run.summary or {}).get("version")
    folder = str(run.folder)
    return {
        "entry": entry,
        "seed": run.seed,
        "done": run.done,
        "rounds": run.rounds,
        "finished": run.finished,
        "accuracy": run.final("global_accuracy"),
        "best": max((a for a in accuracies if math.isfinite(a)), default=math.nan),
        "local": run.final("local_accuracy"),
        "loss": run.final("global_loss"),
        "sent": run.spent[-1][0] if run.spent else math.nan,
        "macs": run.spent[-1][1] if run.spent else math.nan,
        "seconds": run.final("seconds"),
        "version": version if isinstance(version, str) else "",
        "folder": folder,
        "command": f"fedwidth run {shlex.quote(folder + '/config.toml')} --out {shlex.quote(folder + '-again')}",
        "config": run.config_text,
    }


def _allowed(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def _short(value: float) -> float:
    """Five digits: what a screen can show."""
    return float(f"{value:.5g}")


def _plain(data: Any) -> Any:
    """The same with None for what JSON has no word for, and whole floats as integers (they are shorter)."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(value) for value in data]
    if isinstance(data, float):
        return (int(data) if data.is_integer() and abs(data) < 2**53 else data) if math.isfinite(data) else None
    return data
