"""What every worker of Ray is given when it starts: all that a trainer holds, but test data.

Arrays lie in Ray's object store, and a worker reads them where they lie: all workers of a node share one copy of the
data set. Only the model and its plan are Python objects of other kinds.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedwidth.config.build import set_precision
from fedwidth.core.tensor_bytes import TensorBytes
from fedwidth.data import Data, Partition, Shares
from fedwidth.data.records import Split
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
    """The data set without its samples."""
    inputs: TensorBytes
    targets: TensorBytes
    labels: TensorBytes | None
    """The targets of the partition, where they are not those of the data."""
    partition: str
    """The name of the partition."""
    samples: TensorBytes
    offsets: TensorBytes

    @classmethod
    def of(cls, trainer: Trainer) -> WorkerSetup:
        """What the trainer of the driver holds, but test data."""
        data, partition = trainer.data, trainer.partition
        none = Split(torch.empty(0), torch.empty(0, dtype=torch.long))
        own = partition.targets
        alike = own.shape == data.train.targets.shape and _equal(own, data.train.targets)
        return cls(
            model=trainer.model if trainer.device.type == "cpu" else copy.deepcopy(trainer.model).cpu(),
            plan=trainer.plan,
            settings=trainer.settings,
            objective=trainer.objective,
            method=Reference.of(trainer.method),
            data=replace(data, train=none, test=none, vocabulary=None),
            inputs=TensorBytes.of(data.train.inputs),
            targets=TensorBytes.of(data.train.targets),
            labels=None if alike else TensorBytes.of(own),
            partition=partition.name,
            samples=TensorBytes.of(partition.train.samples),
            offsets=TensorBytes.of(partition.train.offsets),
        )

    @property
    def bytes(self) -> int:
        """The number of bytes of all arrays."""
        arrays = [self.inputs, self.targets, self.samples, self.offsets, *([self.labels] if self.labels else [])]
        return sum(array.data.nbytes for array in arrays)

    def trainer(self, device: torch.device) -> Trainer:
        """The trainer of a worker, on its device."""
        train = Split(self.inputs.tensor(), self.targets.tensor())
        shares = Shares(self.samples.tensor(), self.offsets.tensor())
        labels = train.targets if self.labels is None else self.labels.tensor()
        data = replace(self.data, train=train)
        if device.type == "cuda":
            data = data.to(device)
            set_precision(self.settings.precision)
        chosen = self.method.find()
        partition = Partition(self.partition, shares, shares, labels)
        model = self.model.to(device)
        given = (model, self.plan, data, partition, chosen, self.settings)
        return Trainer(*given, device=device, objective=self.objective)


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, wherever they lie."""
    return one is other or torch.equal(one.cpu(), other.cpu())
