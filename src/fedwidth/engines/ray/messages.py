"""What the driver and Ray's workers send each other in a round: arrays, numbers and text in typed records.

Arrays lie in Ray's object store, and a worker reads them where they lie: all workers of a node share one copy of a
round's state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.core.index import Index
from fedwidth.core.running_mean import Weight
from fedwidth.core.submodel import put
from fedwidth.core.tensor_bytes import TensorBytes
from fedwidth.engines.transfer import decode, decode_part, encode, encode_nested, encode_part
from fedwidth.methods import Task
from fedwidth.plan.plan import Plan
from fedwidth.training.engine import Report


@dataclass(frozen=True)
class ChunkTasks:
    """The tasks of a chunk as they are sent to a worker: one entry a task, and each part once."""

    call: int
    """Counts the calls of `RayEngine.run`; the state belongs to one."""
    round: int
    clients: tuple[int, ...]
    capacities: tuple[float, ...]
    places: tuple[int, ...]
    which: tuple[int, ...]
    """The number of each task's part in `parts`."""
    parts: tuple[Any, ...]
    single: tuple[bool, ...]
    sent: tuple[dict[str, dict[str, TensorBytes] | float], ...]
    """What each client is sent beside its sub-model, cut like it."""

    @classmethod
    def of(cls, tasks: Sequence[Task], round: int, call: int, sent: Sequence[Mapping[str, Any]] = ()) -> ChunkTasks:
        """These tasks of a round, and what their clients are sent beside their sub-models."""
        parts = {task.part.key: task.part for task in tasks}
        numbers = {key: number for number, key in enumerate(parts)}
        return cls(
            call=call,
            round=round,
            clients=tuple(int(task.client) for task in tasks),
            capacities=tuple(float(task.capacity) for task in tasks),
            places=tuple(task.place for task in tasks),
            which=tuple(numbers[task.part.key] for task in tasks),
            parts=tuple(encode_part(part) for part in parts.values()),
            single=tuple(task.single for task in tasks),
            sent=tuple(encode_nested(own) for own in sent),
        )

    def tasks(self, plan: Plan) -> list[Task]:
        """The tasks, for a worker's plan; equal indexes are one object."""
        parts = [decode_part(part, plan) for part in self.parts]
        sent = self.sent or ({},) * len(self.clients)
        each = zip(self.clients, self.capacities, self.which, self.places, self.single, sent, strict=True)
        return [
            Task(client, capacity, parts[number], place, _widened(own, parts[number], plan), single=single)
            for client, capacity, number, place, single, own in each
        ]


@dataclass(frozen=True)
class EncodedSum:
    """The sum of a cohort's clients that were in a chunk."""

    cohort: str
    mean: dict[str, TensorBytes]
    weight: dict[str, float | TensorBytes]
    clients: int
    reports: dict[str, EncodedSum]

    @classmethod
    def of(cls, total: CohortSum, cohort: str) -> EncodedSum:
        """A sum by tensor, whichever engine made it."""
        labels = dict(total.index.plan.label_axes)
        weight = {name: _encode_weight(value, labels.get(name)) for name, value in total.weight.items()}
        reports = {name: cls.of(own, cohort) for name, own in total.reports.items()}
        return cls(cohort, encode(total.mean), weight, total.clients, reports)

    def sum(self, index: Index, device: torch.device) -> CohortSum:
        """The sum, to be merged with others of its cohort."""
        weight = {n: w if isinstance(w, float) else w.tensor().to(device) for n, w in self.weight.items()}
        result = CohortSum.of(index, decode(self.mean, device=device), weight, self.clients)
        result.reports.update({name: total.sum(index, device) for name, total in self.reports.items()})
        return result


@dataclass(frozen=True)
class ChunkResult:
    """What a worker made of a chunk."""

    sums: tuple[EncodedSum, ...]
    report: Report
    seconds: float
    kept: dict[int, dict[str, dict[str, TensorBytes]]] = field(default_factory=dict)
    """What clients keep for themselves, by client, name and tensor."""


@dataclass(frozen=True)
class WorkerInfo:
    """Where a worker runs, and with what versions."""

    node: str
    process: int
    fedwidth: str
    torch: str
    gpu: str = ""
    """The GPU that Ray gave it, as CUDA_VISIBLE_DEVICES names it."""

    def __str__(self) -> str:
        return f"process {self.process} on {self.node}{f', GPU {self.gpu}' if self.gpu else ''}"


def _widened(sent: Mapping[str, Any], index: Any, plan: Plan) -> dict[str, dict[str, Tensor] | float]:
    """What a client is sent beside its sub-model in the full model's shapes, as engines expect it; 0 elsewhere."""
    found: dict[str, dict[str, Tensor] | float] = {}
    for name, value in sent.items():
        if not isinstance(value, dict):
            found[name] = value
            continue
        found[name] = full = {}
        for tensor, encoded in value.items():
            part = encoded.tensor()
            full[tensor] = torch.zeros(plan.shapes[tensor], dtype=part.dtype)
            put(full[tensor], part, index, tensor)
    return found


def _encode_weight(weight: Weight, dim: int | None) -> float | TensorBytes:
    """A weight as a number, or as one number per class: flat engines repeat it along all other dimensions."""
    if not isinstance(weight, Tensor):
        return weight
    others = [d for d in range(weight.dim()) if d != dim]
    return TensorBytes.of(weight.amax(others, keepdim=True) if others else weight)
