"""clients.json: what each client is, and how well the final model serves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fedwidth.data import IGNORE, Partition
from fedwidth.evaluation.evaluator import Measured
from fedwidth.run.summary import finite
from fedwidth.training.server.state import Server

if TYPE_CHECKING:
    from fedwidth.experiment import Experiment

MAX_CLIENTS_LISTED = 10_000
MAX_LABELS_LISTED = 1_000
MAX_COUNTS = 100_000
"""Samples are counted label by label up to so many clients times labels: the file stays below a megabyte or so."""


def rows_of(experiment: Experiment, server: Server, measured: Measured | None) -> list[dict[str, Any]]:
    """A row for every client of a run; none where they are too many or not measured."""
    clients = len(experiment.partition)
    if not experiment.evaluator.is_local or clients > MAX_CLIENTS_LISTED:
        return []
    local = (measured or experiment.evaluator.measure(server)).local
    assert local is not None
    fixed = not experiment.settings.devices.dynamic
    capacities = [experiment.cohorts.capacity_of(client, 0) if fixed else None for client in range(clients)]
    return describe_clients(
        experiment.partition, capacities, local.values.tolist(), experiment.trainer.objective.metric.name
    )


def describe_clients(
    partition: Partition, capacities: Sequence[float | None], values: Sequence[float], metric: str = "accuracy"
) -> list[dict[str, Any]]:
    """What each client is, and how well the final model serves it.

    `counts` are its training samples of each of its labels, for data with one label a sample and a split of at most
    `MAX_COUNTS` clients times labels.
    """
    counted = is_counted(partition)
    return [
        {
            "client": client,
            "capacity": capacities[client],
            "samples": len(partition[client]),
            "labels": partition.labels[client].tolist()[:MAX_LABELS_LISTED],
            **({"counts": count_labels(partition, client)[:MAX_LABELS_LISTED]} if counted else {}),
            metric: finite(values[client]),
        }
        for client in range(len(partition))
    ]


def is_counted(partition: Partition) -> bool:
    """Whether a file about every label of every client stays small, and a sample has one label."""
    targets = partition.targets
    return targets.dim() == 1 and len(partition) * (int(targets.max()) + 1) <= MAX_COUNTS


def count_labels(partition: Partition, client: int) -> list[int]:
    """How many training samples of each of its labels a client has, in the order of `partition.labels[client]`."""
    labels, counts = torch.unique(partition.targets[partition[client]], return_counts=True)
    found: list[int] = counts[labels != IGNORE].tolist()
    return found
