"""What the page shows of clients and devices: who gains, what devices can afford, who holds which labels."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fedwidth.evaluation.widths import at_widths
from fedwidth.report.comparison_views import measure_of_page
from fedwidth.report.entries import Entry, spread
from fedwidth.report.rebuild import Rebuilt, said
from fedwidth.report.runs import Run, number
from fedwidth.settings import Settings

View = dict[str, Any]

BINS = 20
MAX_CLIENTS_DRAWN, MAX_LABELS_DRAWN, MAX_PICTURES = 100, 100, 12


def gains_views(entries: Sequence[Entry]) -> View:
    """For each entry the distribution of accuracy over clients, by capacity from the largest on, all seeds together."""
    metric = measure_of_page(entries)
    found: list[dict[float | None, list[float]]] = []
    for entry in entries:
        by_capacity: dict[float | None, list[float]] = {}
        for row in (row for run in entry.runs for row in run.clients):
            accuracy = number(row.get("accuracy"))
            if 0 <= accuracy <= 1 or (not metric.percent and math.isfinite(accuracy)):
                by_capacity.setdefault(_capacity(row), []).append(accuracy)
        found.append(by_capacity if entry.first.measure == metric else {})
    every = [a for by_capacity in found for accuracies in by_capacity.values() for a in accuracies] or [0.0]
    low, high = min(every), max(every)  # all entries share one axis
    if metric.percent:
        low, high = min(0.8, math.floor(10 * low) / 10), 1.0
    elif low == high:
        high = low + 1.0
    views = [
        {
            "entry": position,
            "levels": [
                _distribution(capacity, by_capacity[capacity], (low, high))
                for capacity in sorted(by_capacity, key=lambda c: -(c or 0))
            ],
        }
        for position, by_capacity in enumerate(found)
        if by_capacity
    ]
    return {"low": low, "high": high, "views": views}


def _distribution(capacity: float | None, accuracies: Sequence[float], ends: tuple[float, float]) -> View:
    return {
        "capacity": capacity,
        "clients": len(accuracies),
        "mean": float(np.mean(accuracies)),
        "quantiles": np.quantile(accuracies, [0, 0.25, 0.5, 0.75, 1]).tolist(),
        "bins": np.histogram(accuracies, BINS, ends)[0].tolist(),
    }


def widths_views(entries: Sequence[Entry], built: Sequence[Rebuilt | str]) -> View:
    """For each entry the accuracy of the global model's sub-model at each capacity it was measured at, over seeds.

    A method that always trains the whole model (FedAvg) has no sub-models; it is named under `whole`. Entries that were
    measured on validation samples, as they leave the test set alone, are named under `validated`.
    """
    views: list[View] = []
    whole: list[int] = []
    for position, (entry, model) in enumerate(zip(entries, built, strict=True)):
        found: dict[float, list[float]] = {}
        for run in (run for run in entry.runs if run.measure == measure_of_page(entries)):
            for name, accuracy in next(_at_widths(run), {}).items():
                if 0 < (capacity := _read_capacity(name)) <= 1:
                    found.setdefault(capacity, []).append(number(accuracy))
        asked = [*found, *map(number, _list(entry.first.setting("evaluation.capacities")))]
        narrower = [capacity for capacity in asked if 0 < capacity < 1]
        if narrower and not isinstance(model, str) and not model.narrows(min(narrower)):
            whole.append(position)
        elif found:
            levels = [{"capacity": capacity, **spread(found[capacity])} for capacity in sorted(found)]
            views.append({"entry": position, "levels": levels})
    validated = [view["entry"] for view in views if not entries[view["entry"]].first.setting("evaluation.test", True)]
    return {"views": views, "whole": whole, "validated": validated}


def _read_capacity(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def devices_view(entry: Entry, built: Rebuilt | str) -> View:
    """How many clients have which capacity, and what a round costs a client of each."""
    run = entry.first
    mix = Counter(c for row in run.clients if (c := _capacity(row)) is not None)
    counted = "clients"
    if not mix:  # drawn anew each round, or too many clients to list
        counted = "updates"
        mix = Counter(c for line in run.metrics for c in map(number, _list(line.get("capacities"))) if 0 < c <= 1)
    updates = sum(len(_list(line.get("clients"))) for line in run.metrics)
    sent, macs = run.spent[-1] if run.spent else (math.nan, math.nan)
    costs, reason = _costs(built, mix)
    return {
        "counted": counted,
        "width": number(run.setting("model.width", 1.0)),
        "levels": [{"capacity": c, "count": mix[c], **costs.get(c, {})} for c in sorted(mix, reverse=True)],
        "full": costs.get(1.0),
        "mean": _mean(costs, mix),
        "smallest": costs.get(min(mix)) if mix else None,
        "sent": _per(sent, updates),
        "macs": _per(macs, updates),
        "reason": reason,
    }


def split_view(run: Run) -> View | None:
    """Which client holds how many samples of which labels; a sample of clients where there are many.

    Runs of earlier versions say which labels only; `most` (samples of one label that a client has) is then 0.
    """
    rows = [row for row in run.clients if isinstance(row.get("labels"), list) and row["labels"]]
    if not rows:
        return None
    held = [_held(row) for row in rows]
    labels = 1 + max((max(mine) for mine in held if mine), default=0)
    positions = sorted({int(p) for p in np.linspace(0, len(rows) - 1, min(len(rows), MAX_CLIENTS_DRAWN)).round()})
    counted = all(count > 0 for mine in held for count in mine.values())
    most = max((count for mine in held for count in mine.values()), default=0) if counted else 0
    return {
        "total": len(rows),
        "labels": labels,
        "drawn": min(labels, MAX_LABELS_DRAWN),
        "most": most,
        "clients": [
            {
                "client": rows[position].get("client", position),
                "capacity": _capacity(rows[position]),
                "samples": number(rows[position].get("samples")),
                "labels": (drawn := [label for label in sorted(held[position]) if label < MAX_LABELS_DRAWN]),
                **({"counts": [held[position][label] for label in drawn]} if most else {}),
            }
            for position in positions
        ],
    }


def _held(row: View) -> dict[int, int]:
    """How many samples of each label a client holds; 0 where that is not recorded."""
    labels, counts = row["labels"], _list(row.get("counts"))
    known = len(counts) == len(labels) and all(type(count) is int and 0 < count < 2**53 for count in counts)
    pairs = zip(labels, counts if known else [0] * len(labels), strict=True)
    return {label: count for label, count in pairs if type(label) is int and label >= 0}


def merge_equal(views: Iterable[tuple[int, View | None]]) -> list[View]:
    """Equal views of several entries as one view that names them all."""
    found: dict[str, View] = {}
    for entry, view in views:
        if view is not None:
            key = json.dumps(view, sort_keys=True, default=str)
            found.setdefault(key, {**view, "entries": []})["entries"].append(entry)
    return list(found.values())[:MAX_PICTURES]


def _costs(built: Rebuilt | str, capacities: Iterable[float]) -> tuple[dict[float, View], str | None]:
    """What the sub-model of each capacity costs, or why that is not known."""
    if isinstance(built, str):
        return {}, built
    try:
        costs = {capacity: built.cost(capacity) for capacity in {1.0, *capacities}}
    except Exception as error:  # a user's model may run at some widths and fail at others
        return {}, said(error)
    return {
        capacity: {
            "parameters": cost.parameters,
            "bytes": cost.bytes_down,
            "memory": cost.memory(batch=built.settings.training.batch_size, moments=_moments(built.settings)),
            "macs": cost.macs,
            "share": cost.share,
        }
        for capacity, cost in costs.items()
    }, None


def _moments(settings: Settings) -> int:
    """How many copies of the weights the local optimiser keeps."""
    training = settings.training
    return 2 if training.optimiser != "sgd" else int(training.momentum > 0)


def _mean(costs: dict[float, View], mix: Counter[float]) -> View | None:
    """What a client costs on average over the mix, as in FedRolex Table 7."""
    if not costs or not mix:
        return None
    return {key: sum(costs[c][key] * count for c, count in mix.items()) / mix.total() for key in costs[1.0]}


def _at_widths(run: Run) -> Iterator[View]:
    for table in (run.summary or {}, *reversed(run.metrics)):
        if found := at_widths(table):
            yield found


def _capacity(row: View) -> float | None:
    capacity = number(row.get("capacity"))
    return capacity if 0 < capacity <= 1 else None


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def _per(total: float, count: int) -> float:
    return total / count if count else math.nan
