"""What travels between the driver and Ray's workers: arrays, numbers and text in typed records.

Arrays lie in Ray's object store, and a worker reads them where they lie: all workers of a node share one copy of the
data set and one of a round's state. Only the model and its plan are Python objects of other kinds.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedwidth.config.build import set_precision
from fedwidth.core.cohort import CohortSum
from fedwidth.core.index import Index
from fedwidth.core.running_mean import Weight
from fedwidth.core.submodel import put
from fedwidth.data import Data, Partition, Shares
from fedwidth.data.records import Split
from fedwidth.engines.plain_index import plain, restored
from fedwidth.methods import Reference, Task
from fedwidth.plan.plan import Plan
from fedwidth.settings import Settings
from fedwidth.training.client import Trainer
from fedwidth.training.rounds import Report

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Packed:
    """A tensor as bytes, the name of its dtype and its shape; numpy does not have all of PyTorch's dtypes."""

    raw: Array
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Packed:
        """Shares the tensor's memory where it is contiguous and on the CPU."""
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return cls(raw, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    def tensor(self) -> Tensor:
        """Shares the memory it came in; not to be written to."""
        if not len(self.raw):
            return torch.empty(self.shape, dtype=getattr(torch, self.dtype))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # PyTorch knows no tensors that may only be read
            return torch.from_numpy(self.raw).view(getattr(torch, self.dtype)).reshape(self.shape)


def pack(tensors: Mapping[str, Tensor]) -> dict[str, Packed]:
    """Every tensor packed."""
    return {name: Packed.of(tensor) for name, tensor in tensors.items()}


def unpack(packed: Mapping[str, Packed], device: torch.device) -> dict[str, Tensor]:
    """The tensors, on a device."""
    return {name: tensor.tensor().to(device) for name, tensor in packed.items()}


@dataclass(frozen=True)
class Kit:
    """What every worker needs for the whole run; put into the object store once."""

    model: nn.Module
    plan: Plan
    settings: Settings
    method: Reference
    data: Data
    """Without samples."""
    inputs: Packed
    targets: Packed
    labels: Packed | None
    """Targets of the partition, where they are not those of the data."""
    clients: str
    samples: Packed
    offsets: Packed

    @classmethod
    def of(cls, trainer: Trainer) -> Kit:
        """What the trainer holds, but test data."""
        data, partition = trainer.data, trainer.partition
        none = Split(torch.empty(0), torch.empty(0, dtype=torch.long))
        own = partition.targets
        return cls(
            model=trainer.model if trainer.device.type == "cpu" else copy.deepcopy(trainer.model).cpu(),
            plan=trainer.plan,
            settings=trainer.settings,
            method=Reference.of(trainer.method),
            data=replace(data, train=none, test=none, vocabulary=None),
            inputs=Packed.of(data.train.inputs),
            targets=Packed.of(data.train.targets),
            labels=None
            if own.shape == data.train.targets.shape and _equal(own, data.train.targets)
            else Packed.of(own),
            clients=partition.name,
            samples=Packed.of(partition.train.samples),
            offsets=Packed.of(partition.train.offsets),
        )

    @property
    def bytes(self) -> int:
        """Of the arrays."""
        arrays = [self.inputs, self.targets, self.samples, self.offsets, *([self.labels] if self.labels else [])]
        return sum(array.raw.nbytes for array in arrays)

    def trainer(self, device: torch.device) -> Trainer:
        """The trainer in a worker, on its device."""
        train = Split(self.inputs.tensor(), self.targets.tensor())
        shares = Shares(self.samples.tensor(), self.offsets.tensor())
        labels = train.targets if self.labels is None else self.labels.tensor()
        data = replace(self.data, train=train)
        if device.type == "cuda":
            data = data.to(device)
            set_precision(self.settings.precision)
        chosen = self.method.find()
        partition = Partition(self.clients, shares, shares, labels)
        model = self.model.to(device)
        return Trainer(model, self.plan, data, partition, chosen, self.settings, device=device)


@dataclass(frozen=True)
class Work:
    """A parcel as it is sent: tasks, each with the number of its index."""

    call: int
    """Counts the calls of `RayEngine.run`; the state belongs to one."""
    round: int
    clients: tuple[int, ...]
    capacities: tuple[float, ...]
    places: tuple[int, ...]
    which: tuple[int, ...]
    parts: tuple[Any, ...]
    single: tuple[bool, ...]
    sent: tuple[dict[str, dict[str, Packed] | float], ...]
    """What each client is sent beside its sub-model, cut like it."""

    @classmethod
    def of(cls, tasks: Sequence[Task], round: int, call: int, sent: Sequence[Mapping[str, Any]] = ()) -> Work:
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
            parts=tuple(plain(part) for part in parts.values()),
            single=tuple(task.single for task in tasks),
            sent=tuple(
                {name: pack(value) if isinstance(value, Mapping) else value for name, value in own.items()}
                for own in sent
            ),
        )

    def tasks(self, plan: Plan) -> list[Task]:
        """The tasks; equal indexes are one object."""
        parts = [restored(part, plan) for part in self.parts]
        sent = self.sent or ({},) * len(self.clients)
        each = zip(self.clients, self.capacities, self.which, self.places, self.single, sent, strict=True)
        return [
            Task(client, capacity, parts[number], place, _widened(own, parts[number], plan), single)
            for client, capacity, number, place, single, own in each
        ]


@dataclass(frozen=True)
class PackedSum:
    """A cohort's sum, of those of its clients that were in the parcel."""

    key: str
    mean: dict[str, Packed]
    weight: dict[str, float | Packed]
    clients: int
    reports: dict[str, PackedSum]

    @classmethod
    def of(cls, cohort: CohortSum, key: str) -> PackedSum:
        """The sum by tensor, whichever engine made it; `key` says which cohort it is."""
        labels = dict(cohort.index.plan.label_axes)
        weight = {name: _pack_weight(value, labels.get(name)) for name, value in cohort.weight.items()}
        reports = {name: cls.of(total, key) for name, total in cohort.reports.items()}
        return cls(key, pack(cohort.mean), weight, cohort.clients, reports)

    def sum(self, index: Index, device: torch.device) -> CohortSum:
        """The sum, to be merged with others of its cohort."""
        weight = {n: w if isinstance(w, float) else w.tensor().to(device) for n, w in self.weight.items()}
        result = CohortSum.of(index, unpack(self.mean, device), weight, self.clients)
        result.reports.update({name: total.sum(index, device) for name, total in self.reports.items()})
        return result


@dataclass(frozen=True)
class Answer:
    """What a worker made of a parcel."""

    sums: tuple[PackedSum, ...]
    report: Report
    seconds: float
    kept: dict[int, dict[str, dict[str, Packed]]] = field(default_factory=dict)
    """What clients keep for themselves, by client, name and tensor."""


@dataclass(frozen=True)
class About:
    """Where a worker runs, and with what."""

    node: str
    process: int
    fedwidth: str
    torch: str
    gpu: str = ""
    """The GPU Ray gave it, as CUDA_VISIBLE_DEVICES names it."""

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
        for tensor, packed in value.items():
            part = packed.tensor()
            full[tensor] = torch.zeros(plan.shapes[tensor], dtype=part.dtype)
            put(full[tensor], part, index, tensor)
    return found


def _pack_weight(weight: Weight, dim: int | None) -> float | Packed:
    """A number, or one number per class: flat engines repeat it along all other dimensions."""
    if not isinstance(weight, Tensor):
        return weight
    others = [d for d in range(weight.dim()) if d != dim]
    return Packed.of(weight.amax(others, keepdim=True) if others else weight)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one is other or torch.equal(one.cpu(), other.cpu())
