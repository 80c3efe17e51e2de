"""What is written down at the end of a run, summary.json, and how its numbers are written and said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import fedwidth
from fedwidth.objectives.metric import Measure
from fedwidth.settings import Settings


def summarise(settings: Settings, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The summary of a finished run from the metrics of its rounds; `metric` says what its keys are named after."""
    last = lines[-1]
    measure = Measure.of(last)
    metric, capacity = measure.name, f"capacity_{measure.name}"
    by_capacity = [f"{capacity}_mean", f"{capacity}_spread"]
    by_capacity += [f"capacity_validation_{metric}", f"capacity_validation_{metric}_mean"]
    by_capacity += [f"together_{metric}", f"together_validation_{metric}", f"chosen_{metric}", "chosen_capacities"]
    best, best_round = _best(lines, f"global_{metric}", measure)
    simulated = [line.get("device_seconds") for line in lines]
    return {
        "name": settings.name,
        "method": settings.method.name,
        "rounds": settings.rounds,
        "metric": measure.facts(),
        f"global_{metric}": last.get(f"global_{metric}"),
        "global_loss": last.get("global_loss"),
        f"local_{metric}": last.get(f"local_{metric}"),
        "local_quantiles": last.get("local_quantiles"),
        f"best_global_{metric}": best,
        "best_round": best_round,
        **({"class_accuracy": last["class_accuracy"]} if "class_accuracy" in last else {}),
        capacity: last.get(capacity),
        **{name: last[name] for name in by_capacity if name in last},
        **_validated(lines, measure),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "macs": sum(line["macs"] for line in lines),
        **({} if None in simulated else {"device_seconds": sum(simulated)}),
        "seconds": last["seconds"],
        "seed": settings.seed,
        "version": fedwidth.__version__,
    }


def _best(lines: Sequence[dict[str, Any]], name: str, measure: Measure) -> tuple[float | None, int | None]:
    """The best value of this name, and after how many rounds it was measured first; None where it never was."""
    measured = [line for line in lines if line.get(name) is not None]
    best = max(measured, key=lambda line: measure.sign * line[name], default={})
    return best.get(name), best.get("round")


def _validated(lines: Sequence[dict[str, Any]], measure: Measure) -> dict[str, Any]:
    """The part of the summary about validation samples; empty where there are none."""
    last, name = lines[-1], f"validation_{measure.name}"
    if name not in last:
        return {}
    best, best_round = _best(lines, name, measure)
    return {
        name: last[name],
        "validation_loss": last.get("validation_loss"),
        f"best_{name}": best,
        "best_validation_round": best_round,
    }


def describe_score(line: Mapping[str, Any]) -> str:
    """What a line of the metrics says of the global model, in words; empty where it was not measured.

    >>> describe_score({"global_accuracy": 0.5}), describe_score({"validation_accuracy": 0.25})
    ('accuracy 50.00 %', 'validation 25.00 %')
    """
    measure = Measure.of(line)
    names = {f"global_{measure.name}": measure.title, f"validation_{measure.name}": "validation"}
    found = {name: line[key] for key, name in names.items() if key in line}
    return ", ".join(f"{name} {measure.text(value)}" for name, value in found.items() if value is not None)


def finite(value: Any) -> Any:
    """The value, or None where it is a number that JSON cannot write.

    >>> finite(0.5), finite(float("nan")), finite([1.0, float("inf")])
    (0.5, None, [1.0, None])
    >>> finite({"0.5": float("nan")})
    {'0.5': None}
    """
    if isinstance(value, list):
        return [finite(each) for each in value]
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
