"""What is written down at the end of a run: summary.json, and clients.json with a row per client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import fedwidth
from fedwidth.data import Partition
from fedwidth.settings import Settings

MOST_LABELS_LISTED = 1_000


def summarise(settings: Settings, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The summary of a finished run from the metrics of its rounds."""
    measured = [line for line in lines if "global_accuracy" in line]
    best = max(measured, key=lambda line: line["global_accuracy"])
    last = lines[-1]
    return {
        "name": settings.name,
        "method": settings.method.name,
        "rounds": settings.rounds,
        "global_accuracy": last["global_accuracy"],
        "global_loss": last["global_loss"],
        "local_accuracy": last.get("local_accuracy"),
        "local_quantiles": last.get("local_quantiles"),
        "best_global_accuracy": best["global_accuracy"],
        "best_round": best["round"],
        "capacity_accuracy": last.get("capacity_accuracy"),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "macs": sum(line["macs"] for line in lines),
        "seconds": last["seconds"],
        "seed": settings.seed,
        "version": fedwidth.__version__,
    }


def describe_clients(
    partition: Partition, capacities: Sequence[float | None], accuracies: Sequence[float]
) -> list[dict[str, Any]]:
    """What each client is, and how well the final model serves it."""
    return [
        {
            "client": client,
            "capacity": capacities[client],
            "samples": len(partition[client]),
            "labels": partition.labels[client].tolist()[:MOST_LABELS_LISTED],
            "accuracy": finite(accuracies[client]),
        }
        for client in range(len(partition))
    ]


def finite(value: Any) -> Any:
    """The value, or None where it is a number that JSON cannot write.

    >>> finite(0.5), finite(float("nan")), finite([1.0, float("inf")])
    (0.5, None, [1.0, None])
    """
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
