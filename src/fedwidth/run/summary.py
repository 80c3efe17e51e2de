"""What is written down at the end of a run, summary.json, and how its numbers are written and said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import fedwidth
from fedwidth.settings import Settings


def summarise(settings: Settings, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The summary of a finished run from the metrics of its rounds."""
    best, best_round = _best(lines, "global_accuracy")
    last = lines[-1]
    return {
        "name": settings.name,
        "method": settings.method.name,
        "rounds": settings.rounds,
        "global_accuracy": last.get("global_accuracy"),
        "global_loss": last.get("global_loss"),
        "local_accuracy": last.get("local_accuracy"),
        "local_quantiles": last.get("local_quantiles"),
        "best_global_accuracy": best,
        "best_round": best_round,
        **({"class_accuracy": last["class_accuracy"]} if "class_accuracy" in last else {}),
        "capacity_accuracy": last.get("capacity_accuracy"),
        **{name: last[name] for name in ("capacity_accuracy_mean", "capacity_accuracy_spread") if name in last},
        **_validated(lines),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "macs": sum(line["macs"] for line in lines),
        **({"device_seconds": sum(line["device_seconds"] for line in lines)} if "device_seconds" in last else {}),
        "seconds": last["seconds"],
        "seed": settings.seed,
        "version": fedwidth.__version__,
    }


def _best(lines: Sequence[dict[str, Any]], name: str) -> tuple[float | None, int | None]:
    """The highest accuracy of this name, and after how many rounds it was measured first; None where it never was."""
    measured = [line for line in lines if line.get(name) is not None]
    best = max(measured, key=lambda line: line[name], default={})
    return best.get(name), best.get("round")


def _validated(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What was measured on validation samples; nothing where there are none."""
    last = lines[-1]
    if "validation_accuracy" not in last:
        return {}
    best, best_round = _best(lines, "validation_accuracy")
    return {
        "validation_accuracy": last["validation_accuracy"],
        "validation_loss": last["validation_loss"],
        "best_validation_accuracy": best,
        "best_validation_round": best_round,
    }


def describe_accuracy(line: Mapping[str, Any]) -> str:
    """What a line of the metrics says of the global model, in words; empty where it was not measured.

    >>> describe_accuracy({"global_accuracy": 0.5}), describe_accuracy({"validation_accuracy": 0.25})
    ('accuracy 50.00 %', 'validation 25.00 %')
    """
    names = {"global_accuracy": "accuracy", "validation_accuracy": "validation"}
    return ", ".join(f"{name} {100 * line[key]:.2f} %" for key, name in names.items() if key in line)


def finite(value: Any) -> Any:
    """The value, or None where it is a number that JSON cannot write.

    >>> finite(0.5), finite(float("nan")), finite([1.0, float("inf")])
    (0.5, None, [1.0, None])
    """
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
