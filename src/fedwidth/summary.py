"""What is written down at the end of a run: summary.json, and clients.json with a row per client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

import fedwidth
from fedwidth.data import Partition
from fedwidth.data.records import IGNORE
from fedwidth.settings import Settings

MOST_LABELS_LISTED = 1_000
MOST_COUNTS = 100_000
"""Clients times labels of a split whose samples are counted label by label: the file stays below a megabyte or so."""


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
        **{name: last[name] for name in ("capacity_accuracy_mean", "capacity_accuracy_spread") if name in last},
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
    """What each client is, and how well the final model serves it.

    `counts` are its training samples of each of its labels, for data with one label a sample and a split of at most
    `MOST_COUNTS` clients times labels.
    """
    counted = is_counted(partition)
    return [
        {
            "client": client,
            "capacity": capacities[client],
            "samples": len(partition[client]),
            "labels": partition.labels[client].tolist()[:MOST_LABELS_LISTED],
            **({"counts": count_labels(partition, client)[:MOST_LABELS_LISTED]} if counted else {}),
            "accuracy": finite(accuracies[client]),
        }
        for client in range(len(partition))
    ]


def is_counted(partition: Partition) -> bool:
    """Whether a file about every label of every client stays small, and a sample has one label."""
    targets = partition.targets
    return targets.dim() == 1 and len(partition) * (int(targets.max()) + 1) <= MOST_COUNTS


def count_labels(partition: Partition, client: int) -> list[int]:
    """How many training samples of each of its labels a client has, in the order of `partition.labels[client]`."""
    labels, counts = torch.unique(partition.targets[partition[client]], return_counts=True)
    found: list[int] = counts[labels != IGNORE].tolist()
    return found


def finite(value: Any) -> Any:
    """The value, or None where it is a number that JSON cannot write.

    >>> finite(0.5), finite(float("nan")), finite([1.0, float("inf")])
    (0.5, None, [1.0, None])
    """
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
