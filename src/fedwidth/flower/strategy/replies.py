"""What a client of someone's own Flower app has sent back: checked, and made an update."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from torch import Tensor

from fedwidth.core.updates import Update, check_finite, check_update, weigh
from fedwidth.errors import FedwidthError, UpdateError
from fedwidth.methods import Task
from fedwidth.printable import printable

LABELS, STEPS = "labels", "num-steps"
"""Keys of a reply's metrics that are for the server alone: the classes the client has, and its steps."""


@dataclass(frozen=True)
class Reading:
    """What a reply may hold."""

    weighting: str
    label_rows: bool
    weighted_by: str = "num-examples"
    """The key of the metrics that says how many samples the client has."""
    norm_bound: float = 10.0
    """Largest norm of the change, in multiples of the norm of what was sent (at least 1)."""
    max_samples: int = 1_000_000


def read_reply(
    content: RecordDict, task: Task, sent: Mapping[str, Tensor], needed: Collection[str], reading: Reading
) -> tuple[Update, MetricRecord]:
    """The client's update and its metrics; `UpdateError` says in one sentence what is wrong with them.

    `needed` are the tensors that must have come; the others of those that were `sent` may be missing, and are then as
    they were sent.
    """
    arrays, metrics = _only(content.array_records, "ArrayRecord"), _only(content.metric_records, "MetricRecord")
    sub = _tensors(arrays, sent, needed)
    samples = _number(metrics, reading.weighted_by)
    if not 1 <= samples <= reading.max_samples:
        raise UpdateError(f"its {reading.weighted_by} is {samples:g}, not from 1 to {reading.max_samples:,}")
    steps = _number(metrics, STEPS) if reading.weighting in ("updates", "hybrid") else 1.0
    if not 1 <= steps <= reading.max_samples:
        raise UpdateError(f"its {STEPS} is {steps:g}, not from 1 to {reading.max_samples:,}")
    weight = weigh(reading.weighting, samples=int(samples), index=task.part, updates=int(steps))
    labels = metrics.get(LABELS) if reading.label_rows else None
    if labels is not None and not (isinstance(labels, list) and all(type(label) is int for label in labels)):
        raise UpdateError(f"its {LABELS} are not a list of whole numbers")
    _check_norm(sub, sent, reading.norm_bound)
    try:
        update = Update(
            sub, task.part, weight, labels=None if labels is None else torch.tensor(labels), client=task.client
        )
        if getattr(task.part, "shapes", None) is not None:
            check_update(update, task.part)
        else:
            check_finite(sub, update.who)
    except FedwidthError as error:
        raise UpdateError(str(error)) from None
    return update, metrics


def _only(records: Mapping[str, ArrayRecord | MetricRecord], kind: str) -> ArrayRecord | MetricRecord:
    if len(records) != 1:
        raise UpdateError(f"it has {len(records)} records of kind {kind}, not one")
    return next(iter(records.values()))


def _tensors(arrays: ArrayRecord, sent: Mapping[str, Tensor], needed: Collection[str]) -> dict[str, Tensor]:
    for name in sorted(set(needed) - set(arrays)):
        raise UpdateError(f"it lacks tensor '{name}'")
    for name in arrays:
        if name not in sent:
            raise UpdateError(f"it has an unknown tensor '{printable(name, 80)}'")
    found = {}
    for name, old in sent.items():
        if name not in arrays:
            found[name] = old
            continue
        array, room = arrays[name], old.numel() * old.element_size() + 4096
        if tuple(array.shape) != tuple(old.shape) or len(array.data) > room:
            raise UpdateError(f"'{name}' has shape {printable(list(array.shape), 60)}, not {list(old.shape)}")
        try:
            tensor = torch.from_numpy(array.numpy().copy())
        except Exception as error:  # whatever bytes that are no array make of NumPy
            raise UpdateError(f"'{name}' cannot be read: {printable(error, 80)}") from None
        if tensor.dtype != old.dtype or tensor.shape != old.shape:
            raise UpdateError(f"'{name}' is {tensor.dtype} {list(tensor.shape)}, not {old.dtype} {list(old.shape)}")
        found[name] = tensor
    return found


def _number(metrics: MetricRecord, name: str) -> float:
    value = metrics.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UpdateError(f"its {name} is {printable(repr(value), 60)}, not a finite number")
    return float(value)


def _check_norm(sub: Mapping[str, Tensor], sent: Mapping[str, Tensor], bound: float) -> None:
    """Refuse a change that is not finite, or larger than training can bring about."""
    change = size = 0.0
    for name, old in sent.items():
        if old.is_floating_point():
            before, after = old.double(), sub[name].double()
            if not bool(torch.isfinite(after).all()):
                raise UpdateError(f"'{name}' holds a value that is not finite")
            change += float((after - before).square().sum())
            size += float(before.square().sum())
    allowed = bound * max(1.0, math.sqrt(size))
    if not math.sqrt(change) <= allowed:
        raise UpdateError(f"its change has norm {math.sqrt(change):.3g}, above the bound {allowed:.3g}")
