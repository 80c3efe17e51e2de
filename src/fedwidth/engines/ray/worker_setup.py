"""What every worker of Ray is given when it starts: all that a trainer holds, but test data.

Arrays lie in Ray's object store, and a worker reads them where they lie: all workers of a node share one copy of the
data set. Only the model and its plan are Python objects of other kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedwidth.core.narrow import copy_model
from fedwidth.core.tensor_bytes import TensorBytes
from fedwidth.data import Data, Partition, Shares
from fedwidth.data.records import Split
from fedwidth.data.trees import Tree, leaves, mapped
from fedwidth.gpu import set_precision
from fedwidth.methods import Reference
from fedwidth.objectives import Objective
from fedwidth.plan.plan import Plan
from fedwidth.settings import Settings
from fedwidth.training.client import Trainer


@dataclass(frozen=True)
class WorkerSetup:
    """What every worker needs for the whole run; it is put into the object store once."""

    model: nn.Module
    plan: Plan
    settings: Settings
    objective: Objective
    method: Reference
    data: Data
    """The data set without its samples; where they are read as they are needed, with what reads them."""
    inputs: list[TensorBytes]
    """The tensors of the inputs; empty where they are read as they are needed."""
    targets: list[TensorBytes]
    labels: TensorBytes | None
    """The labels of the partition, where they are not those of the data."""
    partition: str
    """The name of the partition."""
    samples: TensorBytes
    offsets: TensorBytes

    @classmethod
    def of(cls, trainer: Trainer) -> WorkerSetup:
        """What the trainer of the driver holds, but test data."""
        data, partition = trainer.data, trainer.partition
        none = Split(torch.empty(0), torch.empty(0, dtype=torch.long))
        own, labels, lazy = partition.targets, data.train.labels, data.is_lazy
        alike = own is labels or (isinstance(own, Tensor) and own.shape == labels.shape and _equal(own, labels))
        return cls(
            model=trainer.model if trainer.device.type == "cpu" else copy_model(trainer.model).cpu(),
            plan=trainer.plan,
            settings=trainer.settings,
            objective=trainer.objective,
            method=Reference.of(trainer.method),
            data=replace(data, train=data.train if lazy else _hollow(data.train), test=none, vocabulary=None),
            inputs=[] if lazy else [TensorBytes.of(tensor) for tensor in leaves(data.train.inputs)],
            targets=[] if lazy else [TensorBytes.of(tensor) for tensor in leaves(data.train.targets)],
            labels=None if alike else TensorBytes.of(own),
            partition=partition.name,
            samples=TensorBytes.of(partition.train.samples),
            offsets=TensorBytes.of(partition.train.offsets),
        )

    @property
    def bytes(self) -> int:
        """The number of bytes of all arrays."""
        labels = [self.labels] if self.labels else []
        arrays = [*self.inputs, *self.targets, self.samples, self.offsets, *labels]
        return sum(array.data.nbytes for array in arrays)

    def trainer(self, device: torch.device) -> Trainer:
        """The trainer of a worker, on its device."""
        train = self.data.train
        if not train.is_lazy:
            train = Split(_filled(train.inputs, self.inputs), _filled(train.targets, self.targets))
        shares = Shares(self.samples.tensor(), self.offsets.tensor())
        labels = train.labels if self.labels is None else self.labels.tensor()
        data = replace(self.data, train=train)
        if device.type == "cuda":
            data = data.to(device)
            set_precision(self.settings.precision)
        chosen = self.method.find()
        partition = Partition(self.partition, shares, shares, labels)
        model = self.model.to(device)
        given = (model, self.plan, data, partition, chosen, self.settings)
        return Trainer(*given, device=device, objective=self.objective)


def _hollow(split: Split) -> Split:
    """A split of the same structure without samples."""
    inputs, targets = (mapped(lambda tensor: tensor[:0], tree) for tree in (split.inputs, split.targets))
    return Split(inputs, targets)


def _filled(tree: Tree, tensors: Sequence[TensorBytes]) -> Tree:
    """A tree of this structure with these tensors."""
    found = iter(tensors)
    return mapped(lambda _: next(found).tensor(), tree)


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, wherever they lie."""
    return one is other or torch.equal(one.cpu(), other.cpu())
