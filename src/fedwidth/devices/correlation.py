"""Devices whose size goes with what they hold: which clients are weak may depend on their labels or samples.

As many clients have each capacity as without correlation; only who has which changes. Clients are put in an order, and
the weakest devices go to the first:

    labels         by how much of a client's data is of the first class in an order of classes drawn from the seed, half
                   as much of the second, a quarter of the third …, most first. Where clients hold a few labels in equal
                   parts, those with the first class come first, then those with the second, and so on: the first
                   classes are with weak devices only
    few-samples    by their number of training samples, fewest first
    many-samples   the same, most first

A strength below 1 mixes the ranks in this order with those of the plain draw; at 0 only the plain draw counts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedwidth.data import IGNORE, Partition
from fedwidth.devices.capacity import Capacities
from fedwidth.errors import DataError
from fedwidth.randomness import numpy_generator

NONE, LABELS, FEW_SAMPLES, MANY_SAMPLES = KINDS = ("none", "labels", "few-samples", "many-samples")


def correlate(capacities: Capacities, partition: Partition, kind: str, strength: float, *, seed: int) -> Capacities:
    """The same capacities with a list of which client has which, so that a device's strength goes with its data."""
    if kind == NONE:
        return capacities
    clients = len(partition)
    plain = capacities.assign(clients, seed)
    ties = numpy_generator(seed, "correlation").permutation(clients)
    wanted = _ranks(_first(partition, kind, seed), ties)
    drawn = _ranks(plain, ties)
    order = np.lexsort((ties, strength * wanted + (1 - strength) * drawn))
    by_client = np.empty(clients)
    by_client[order] = np.sort(plain)
    return replace(capacities, by_client=tuple(by_client.tolist()))


def weak_classes(classes: int, seed: int) -> list[int]:
    """The classes in the order in which `labels` gives them to weak devices.

    >>> weak_classes(5, seed=1)
    [2, 4, 3, 1, 0]
    """
    order: list[int] = numpy_generator(seed, "weak classes").permutation(classes).tolist()
    return order


def _first(partition: Partition, kind: str, seed: int) -> np.ndarray:
    """A number for every client; those with the smallest have the weakest devices."""
    if kind != LABELS:
        sizes = partition.sizes.numpy()
        return sizes if kind == FEW_SAMPLES else -sizes
    targets = partition.targets.cpu()
    if targets.dim() != 1:
        raise DataError(
            "devices.correlate is labels, but the data has no one label a sample: choose few-samples or many-samples"
        )
    classes = int(targets.max()) + 1
    weight = torch.zeros(classes, dtype=torch.float64)
    weight[torch.tensor(weak_classes(classes, seed))] = 0.5 ** torch.arange(classes, dtype=torch.float64)
    held = targets[partition.train.samples].long()
    counted = held != IGNORE
    owner = torch.arange(len(partition)).repeat_interleave(partition.sizes)[counted]
    sums = torch.zeros(len(partition), dtype=torch.float64).index_add_(0, owner, weight[held[counted]])
    return -(sums / partition.sizes).numpy()


def _ranks(values: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """The rank of each client when they stand in the order of these values, equal ones in the order of `ties`."""
    ranks = np.empty(len(values))
    ranks[np.lexsort((ties, values))] = np.arange(len(values))
    return ranks
