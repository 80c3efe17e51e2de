"""How long a run will take, judged by the finished runs most like it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedwidth.reproduce.records import Record
from fedwidth.settings import Settings

SAMPLES = {"digits": 1_442, "mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000}
"""How many training samples a data set has, for estimates of runs that have not loaded it."""

ALIKE = (
    ("model", "sizes", "batch", "method"),
    ("model", "sizes", "batch"),
    ("model", "batch"),
    ("model", "sizes"),
    ("model",),
)
"""What two runs must have in common for a local step to take about as long in both, the closest likeness first."""


def count_steps(settings: Settings, samples: float | None = None) -> int | None:
    """The local steps of a whole run whose clients have so many `samples` on average; None where that is not known."""
    training, data = settings.training, settings.data
    if samples is None and data.name in SAMPLES:
        samples = SAMPLES[data.name] * (1 - data.validation) / data.clients
    if not training.steps and samples is None:
        return None
    own = training.steps or training.epochs * math.ceil((samples or 0) / training.batch_size)
    return settings.rounds * settings.devices.per_round * own


def estimate_seconds(settings: Settings, records: Sequence[Record]) -> float | None:
    """How long a run will take, from what a local step took in the finished runs most like it; None without any."""
    steps = count_steps(settings)
    pace = None if steps is None else estimate_pace(settings, records)
    return None if steps is None or pace is None else steps * pace


def estimate_pace(settings: Settings, records: Sequence[Record]) -> float | None:
    """How many seconds a local step will take, from the finished runs most like this one; None without any.

    Of several the fastest counts, because the others may have shared their device. Of runs with other sizes of
    sub-models only those that trained alone count: what a batch of narrow clients takes says nothing about wide ones.
    Of runs with other batch sizes the nearest count.
    """
    wanted, wished = pace_facts(asdict(settings)), settings.training.batch_size
    facts = [(record, pace_facts(record.settings)) for record in records]
    for what in ALIKE:
        alike = [r for r, has in facts if all(has[n] == wanted[n] for n in what) and ("sizes" in what or r.packed == 1)]
        if alike:
            apart = [abs(math.log(record.settings["training"]["batch_size"] / wished)) for record in alike]
            near = [record for record, far in zip(alike, apart, strict=True) if far == min(apart)]
            return min(record.seconds / record.steps for record in near)
    return None


def pace_facts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the time of a local step depends on."""
    model = settings["model"]
    return {
        "model": model["name"],
        "sizes": (model["width"], settings["devices"]["capacities"]),
        "batch": settings["training"]["batch_size"],
        "method": settings["method"]["name"],
    }
