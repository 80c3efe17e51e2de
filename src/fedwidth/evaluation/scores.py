"""Evaluation: the global model on test and validation samples, on each client's own, and its sub-models.

Static batch norm (default): before measuring, the model's batch norms, PyTorch's own included, get the cumulative
statistics of one pass over training data. `norm="batch"` uses the statistics of each test batch instead, as the
published FedRolex code does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedwidth.data import IGNORE, Data, Partition, Split
from fedwidth.errors import DataError
from fedwidth.models import StaticBatchNorm2d, collect_statistics, forget_statistics
from fedwidth.models.static_norm import norms_of, settled_statistics
from fedwidth.settings import EvaluationSettings
from fedwidth.training.loss import mask_logits
from fedwidth.training.skeletons import fill

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
MAX_LOGITS = 2**24
"""Of one batch: 500 sequences of 20 words out of 10,000 would take 400 MB, and as much again for the loss."""


@dataclass(frozen=True)
class Score:
    """Accuracy and mean loss over what was counted (words for text: OOV and EOS count, padding does not)."""

    accuracy: float
    loss: float
    counted: int
    by_class: list[float | None] | None = None
    """Accuracy of each class, None for one without samples; for data with one label a sample, where asked for."""


@dataclass(frozen=True)
class LocalScores:
    """Accuracy of the global model on each client's own test data."""

    accuracies: Tensor
    """Per client; NaN where a client has no test data."""
    counted: Tensor

    @classmethod
    def of(cls, hits: Tensor, counted: Tensor) -> LocalScores:
        """From right answers and answers of each client."""
        return cls(torch.where(counted > 0, hits.double() / counted, torch.nan), counted)

    @property
    def mean(self) -> float | None:
        """Mean over clients, weighted by their test samples; None where nobody has any."""
        known = self.counted > 0
        if not known.any():
            return None
        return float((self.accuracies[known] * self.counted[known]).sum() / self.counted[known].sum())

    @property
    def quantiles(self) -> list[float] | None:
        """The distribution over clients: worst, lower quartile, median, upper quartile and best."""
        known = self.accuracies[self.counted > 0]
        return np.quantile(known.numpy(), QUANTILES).tolist() if len(known) else None


@torch.no_grad()
def prepare(
    model: nn.Module,
    state: Mapping[str, Tensor],
    data: Data,
    settings: EvaluationSettings,
    device: torch.device,
    trained_on: Tensor | None = None,
) -> nn.Module:
    """Load a state into the model and give its batch norms the statistics they are evaluated with.

    Static ones are those of the training samples `trained_on`, by their numbers, or of all.
    """
    fill(model, state)
    model.eval()
    if settings.norm == "batch":
        forget_statistics(model)
        for norm in norms_of(model):
            if not isinstance(norm, StaticBatchNorm2d):
                norm.train()  # PyTorch's own norms use the batch at hand in this mode only
    elif norms_of(model):
        samples = _all(data.train) if trained_on is None else trained_on
        samples = samples[: settings.statistics_samples or len(samples)]
        collect_statistics(
            model, (inputs for inputs, _ in _batches(data, data.train, settings.batch_size, device, samples))
        )
    return model


@torch.no_grad()
def score(
    model: nn.Module,
    data: Data,
    split: Split,
    settings: EvaluationSettings,
    device: torch.device,
    samples: Tensor | None = None,
    *,
    by_class: bool = False,
) -> tuple[Score, Tensor]:
    """Score of a prepared model on a split, and its logits (images) or right answers per sample (text) for `local`.

    `samples` are the numbers of those that count; without them all do.
    """
    samples = _all(split) if samples is None else samples
    # Summed on the device: asking for every batch would make it wait.
    right, counted = torch.zeros(2, dtype=torch.long, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    settled = settled_statistics(model) if settings.norm != "batch" else nullcontext()
    kept = []
    per_sample = math.prod(split.targets.shape[1:]) * data.classes
    size = max(1, min(settings.batch_size, MAX_LOGITS // per_sample))
    with settled:
        for inputs, targets in _batches(data, split, size, device, samples):
            logits = model(inputs)
            valid = targets != IGNORE
            hits = (logits.argmax(-1) == targets) & valid
            loss += functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")
            right += hits.sum()
            counted += valid.sum()
            kept.append(torch.stack([hits.sum(-1), valid.sum(-1)], dim=-1) if targets.dim() > 1 else logits)
    if not counted:
        raise DataError(f"data set '{data.name}' has no target to evaluate on")
    number, answers = int(counted), torch.cat(kept).cpu()
    classes = None
    if by_class and split.targets.dim() == 1:
        targets = split.targets.cpu()[samples].long()
        classes = accuracy_by_class((answers.argmax(-1) == targets).long(), targets, data.classes)
    return Score(int(right) / number, float(loss) / number, number, classes), answers


def accuracy_by_class(hits: Tensor, targets: Tensor, classes: int) -> list[float | None]:
    """The accuracy of each class from whether each sample was answered rightly; None for one without samples.

    >>> accuracy_by_class(torch.tensor([1, 0, 1]), torch.tensor([0, 0, 2]), 3)
    [0.5, None, 1.0]
    """
    known = targets != IGNORE
    right, counted = torch.zeros(2, classes, dtype=torch.long)
    right.index_add_(0, targets[known], hits[known])
    counted.index_add_(0, targets[known], torch.ones_like(hits[known]))
    pairs = zip(right.tolist(), counted.tolist(), strict=True)
    return [got / number if number else None for got, number in pairs]


def local_scores(kept: Tensor, partition: Partition, data: Data, mask: str) -> LocalScores:
    """Local accuracies from what `score` kept on the split the clients are tested on, masked to a client's labels."""
    return local_scores_of(kept[partition.test.samples], partition, data, mask)


def local_scores_of(kept: Tensor, partition: Partition, data: Data, mask: str) -> LocalScores:
    """The same from a row for each of `partition.test.samples`, in that order."""
    owner = owners(partition)
    if partition.test_split(data).targets.dim() == 1:
        targets = partition.test_split(data).targets.cpu()[partition.test.samples]
        absent = absent_by_client(partition, data.classes, mask)
        hits = mask_logits(kept, None if absent is None else absent[owner], mask).argmax(-1) == targets
        kept = torch.stack([hits.long(), torch.ones_like(hits, dtype=torch.long)], dim=-1)
    # Hits and counted of each client in one go: there may be hundreds of thousands of clients.
    sums = torch.zeros(len(partition), 2, dtype=torch.long).index_add_(0, owner, kept)
    return LocalScores.of(*sums.unbind(1))


def owners(partition: Partition) -> Tensor:
    """The client each of `partition.test.samples` is with."""
    return torch.arange(len(partition)).repeat_interleave(partition.test.sizes)


def absent_by_client(partition: Partition, classes: int, mask: str) -> Tensor | None:
    """True for classes a client lacks [clients, classes]; None where nothing is masked."""
    if mask == "none":
        return None
    present = torch.zeros(len(partition) * classes, dtype=torch.bool)
    client = torch.arange(len(partition)).repeat_interleave(partition.train.sizes)
    present[client * classes + partition.targets.cpu()[partition.train.samples].long()] = True
    return ~present.view(len(partition), classes)


def _all(split: Split) -> Tensor:
    return torch.arange(len(split))


def _batches(
    data: Data, split: Split, size: int, device: torch.device, samples: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    number = len(samples)
    starts = list(range(0, number, size))
    if len(starts) > 1 and number % size == 1:
        starts.pop()  # one sample alone has no batch statistics: it goes with the batch before
    for start, end in zip(starts, [*starts[1:], number], strict=True):
        yield data.batch(split, samples[start:end], device=device)
