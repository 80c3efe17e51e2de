"""The record that says what a model is trained for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedwidth.data import Data
from fedwidth.data.trees import count, leaves
from fedwidth.methods import Method, Need
from fedwidth.objectives.metric import Metric
from fedwidth.objectives.output import call, each_of, logits_of

UNLABELLED = {
    "training.mask": Need("none", "there are no classes that a client could lack"),
    "training.smoothing": Need(0.0, "label smoothing is for outputs whose last axis are classes"),
    "server.label_rows": Need(False, "rows of its last layer belong to no class that a client has or lacks"),
}


def numbers_of(data: Data) -> int:
    """How many numbers the target of one sample has."""
    return sum(leaf[0].numel() for leaf in leaves(data.example_targets(1)))


def classes_or_numbers(data: Data) -> int:
    """How many classes there are or, where targets are no classes, how many numbers the target of one sample has."""
    return data.classes or numbers_of(data)


def any_output(output: Any, targets: Any, data: Data) -> None:
    """Whatever the model returns is fine: the loss and the metric are tried on it all the same."""


@dataclass(frozen=True)
class Objective:
    """A loss and a metric; both are given what counts of the model's output, and the targets.

    Functions that worker processes are to find are defined at the top of a module.
    """

    name: str
    loss: Callable[[Any, Any], Tensor]
    """(output, targets) -> the mean loss of a batch, one number."""
    metric: Metric
    output: Callable[[Any], Any] = logits_of
    """What the model returned -> what counts of it."""
    labelled: bool = False
    """Whether targets are class numbers and classes the last axis of the output. Then classes that a client lacks may
    be masked, rows of the classifier averaged over the clients that have the class, and classes measured one by one."""
    ignored: float | None = None
    """The target that does not count. In stacks, clients with fewer samples are filled up with it; where there is none,
    only clients with equally many samples share a stack."""
    total: Callable[[Any, Any], Tensor] | None = None
    """(output, targets) -> the summed losses of targets that count; without it, the mean loss times their number."""
    totals: Callable[[Any, Any], Tensor] | None = None
    """The same of the outputs of several models [models, …]; without it, one by one."""
    outputs: Callable[[Data], int] = classes_or_numbers
    """How many numbers a model gives for each sample or position, for models that are built by name."""
    check: Callable[[Any, Any, Data], None] = any_output
    """Refuses outputs (for the first samples of the data) that do not fit the targets, before anything is trained."""

    @property
    def title(self) -> str:
        """How messages name it."""
        return f"objective {self.name}"

    @property
    def needs(self) -> Mapping[str, Need]:
        """Settings that must have a certain value for this objective to make sense."""
        return {} if self.labelled else UNLABELLED

    def answer(self, model: Callable[..., Any], inputs: Any) -> Any:
        """What counts of a model's answer to a batch."""
        return self.output(call(model, inputs))

    def refuses(self, method: Method) -> str | None:
        """Why a model cannot be trained for this with a method, or None."""
        takes_classes = method.classes or (method.local is not None and method.local.classes(method.values))
        if self.labelled or not takes_classes:
            return None
        return f"{method.title} takes what models answer for logits of classes, and {self.title} has no classes"

    def counted(self, targets: Any) -> Tensor | None:
        """True for targets that count; None where all do."""
        if self.ignored is None or not isinstance(targets, Tensor):
            return None
        return ~targets.isnan() if math.isnan(self.ignored) else targets != int(self.ignored)

    def number(self, targets: Any) -> Tensor:
        """How many targets count; samples, where there is none that does not."""
        counted = self.counted(targets)
        return torch.tensor(count(targets), device=leaves(targets)[0].device) if counted is None else counted.sum()

    def mean(self, values: Tensor, targets: Any) -> Tensor:
        """The mean of one value for each target, over the targets that count."""
        counted = self.counted(targets)
        if counted is None:
            return values.mean()
        weights = counted.to(values.dtype)
        return (values * weights).sum() / weights.sum()

    def total_loss(self, output: Any, targets: Any) -> Tensor:
        """The sum of the losses of the targets that count."""
        return self.total(output, targets) if self.total else self.loss(output, targets) * self.number(targets)

    def total_losses(self, outputs: Any, targets: Any) -> Tensor:
        """The same for the outputs of several models [models, …]."""
        if self.totals is not None:
            return self.totals(outputs, targets)
        return torch.stack([self.total_loss(output, targets).double() for output in each_of(outputs)])

    def without(self, targets: Tensor, missing: Tensor) -> Tensor:
        """Targets [clients, samples, …] in which those of missing samples [clients, samples] do not count."""
        assert self.ignored is not None, "clients with unequal batches do not share a stack"
        if math.isnan(self.ignored) and not targets.is_floating_point():
            targets = targets.float()
        absent = missing.view(*missing.shape, *[1] * (targets.dim() - missing.dim()))
        return targets.masked_fill(absent, self.ignored)
