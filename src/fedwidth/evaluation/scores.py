"""Evaluation: the global model on test and validation samples, on each client's own, and its sub-models.

Static batch norm (default): before measuring, the model's batch norms, PyTorch's own included, get the cumulative
statistics of one pass over training data. `norm="batch"` uses the statistics of each test batch instead, as the
published FedRolex code does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedwidth.data import IGNORE, Data, Partition, Split
from fedwidth.data.batches import in_batches
from fedwidth.data.trees import leaves
from fedwidth.errors import DataError
from fedwidth.models import StaticBatchNorm2d, collect_statistics, forget_statistics
from fedwidth.models.spectral_norm import update_spectral_norms
from fedwidth.models.static_norm import norms_of, settled_statistics
from fedwidth.models.together import choose_together, together
from fedwidth.objectives import CLASSIFICATION, Metric, Objective
from fedwidth.settings import EvaluationSettings
from fedwidth.training.loss import mask_logits
from fedwidth.training.skeletons import fill

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
MAX_LOGITS = 2**24
"""Of one batch: 500 sequences of 20 words out of 10,000 would take 400 MB, and as much again for the loss."""


@dataclass(frozen=True)
class Score:
    """The metric and the mean loss over what was counted (words for text: OOV and EOS count, padding does not)."""

    value: float
    loss: float
    counted: int
    by_class: list[float | None] | None = None
    """Accuracy of each class, None for one without samples; for data with one label a sample, where asked for."""


@dataclass(frozen=True)
class LocalScores:
    """The metric of the global model on each client's own test data."""

    values: Tensor
    """Per client; NaN where a client has no test data."""
    counted: Tensor

    @classmethod
    def of(cls, sums: Tensor, metric: Metric) -> LocalScores:
        """From the metric's numbers, summed for each client [clients, numbers]."""
        return cls(metric.of(sums), sums[..., -1].long())

    @property
    def mean(self) -> float | None:
        """Mean over clients, weighted by their test samples; None where nobody has any."""
        known = self.counted > 0
        if not known.any():
            return None
        return float((self.values[known] * self.counted[known]).sum() / self.counted[known].sum())

    @property
    def quantiles(self) -> list[float] | None:
        """The distribution over clients: lowest, lower quartile, median, upper quartile and highest."""
        known = self.values[self.counted > 0]
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

    Static ones are those of the training samples `trained_on`, by their numbers, or of all. Spectral norms get the
    singular vectors of their weights.
    """
    fill(model, state)
    model.eval()
    if settings.norm == "batch":
        forget_statistics(model)
        for norm in norms_of(model):
            if not isinstance(norm, StaticBatchNorm2d):
                norm.train()  # PyTorch's own norms use the batch at hand in this mode only
        update_spectral_norms(model)
    else:
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
    objective: Objective = CLASSIFICATION,
    by_class: bool = False,
) -> tuple[Score, Tensor]:
    """Score of a prepared model on a split, and what `local_scores` needs of each sample.

    That is its logits where a sample has one label, so that they can be masked, else the metric's numbers. `samples`
    are the numbers of those that count; without them all do.
    """
    samples = _all(split) if samples is None else samples
    # Summed on the device: asking for every batch would make it wait.
    loss = torch.zeros((), dtype=torch.float64, device=device)
    targets_counted = torch.zeros((), dtype=torch.long, device=device)
    summed: list[Tensor] = []
    settled = settled_statistics(model) if settings.norm != "batch" else nullcontext()
    kept, one_label = [], has_one_label(objective, split)
    size = max(1, min(settings.batch_size, MAX_LOGITS // _numbers(objective, data)))
    with settled:
        for inputs, targets in _batches(data, split, size, device, samples):
            output = objective.answer(model, inputs)
            loss += objective.total_loss(output, targets)
            targets_counted += objective.number(targets)
            counts = objective.metric.counts(output, targets)
            summed.append(counts.sum(0))
            kept.append(output if one_label else counts)
    sums = torch.stack(summed).sum(0)
    number, answers = int(sums[-1]), torch.cat(kept).cpu()
    if not number:
        raise DataError(f"data set '{data.name}' has no target to evaluate on")
    classes = None
    if by_class and one_label:
        targets = split.targets.cpu()[samples].long()
        classes = accuracy_by_class((answers.argmax(-1) == targets).long(), targets, data.classes)
    mean_loss = float(loss) / max(1, int(targets_counted))
    return Score(float(objective.metric.of(sums)), mean_loss, number, classes), answers


def score_together(answers: Sequence[Tensor], metric: Metric, split: Split, samples: Tensor | None = None) -> float:
    """The metric of models that answer together, from the logits of each for these `samples` of a split (None: all)."""
    labels = split.labels.cpu().long()
    counts = metric.counts(together(answers), labels if samples is None else labels[samples])
    return float(metric.of(counts.sum(0)))


def choose_by_score(
    answers: Sequence[Tensor], metric: Metric, split: Split, samples: Tensor | None = None
) -> list[int]:
    """Which models do best together on these `samples` of a split (None: all), from the logits of each for them."""
    return choose_together(
        len(answers),
        lambda numbers: metric.measure.sign * score_together([answers[n] for n in numbers], metric, split, samples),
    )


def has_one_label(objective: Objective, split: Split) -> bool:
    """Whether every sample has one class: then a client's absent classes can be masked, and classes told apart."""
    return bool(objective.labelled and split.labels.dim() == 1)


def _numbers(objective: Objective, data: Data) -> int:
    """About how many numbers a model gives for one sample."""
    per_target = objective.outputs(data) if data.classes else 1
    return max(1, sum(leaf[0].numel() for leaf in leaves(data.example_targets(1)))) * max(1, per_target)


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


def local_scores(
    kept: Tensor, partition: Partition, data: Data, mask: str, objective: Objective = CLASSIFICATION
) -> LocalScores:
    """Local metrics from what `score` kept on the split the clients are tested on, masked to a client's labels."""
    return local_scores_of(kept[partition.test.samples], partition, data, mask, objective)


def local_scores_of(
    kept: Tensor, partition: Partition, data: Data, mask: str, objective: Objective = CLASSIFICATION
) -> LocalScores:
    """The same from a row for each of `partition.test.samples`, in that order."""
    owner, split = owners(partition), partition.test_split(data)
    if has_one_label(objective, split):
        targets = split.labels.cpu()[partition.test.samples].long()
        absent = absent_by_client(partition, data.classes, mask)
        masked = mask_logits(kept, None if absent is None else absent[owner], mask)
        kept = objective.metric.counts(masked, targets)
    # The sums of each client in one go: there may be hundreds of thousands of clients.
    sums = kept.new_zeros(len(partition), kept.shape[1]).index_add_(0, owner, kept)
    return LocalScores.of(sums, objective.metric)


def owners(partition: Partition) -> Tensor:
    """The client each of `partition.test.samples` is with."""
    return torch.arange(len(partition)).repeat_interleave(partition.test.sizes)


def absent_by_client(partition: Partition, classes: int, mask: str) -> Tensor | None:
    """True for classes a client lacks [clients, classes]; None where nothing is masked."""
    if mask == "none":
        return None
    present = torch.zeros(len(partition) * classes, dtype=torch.bool)
    client = torch.arange(len(partition)).repeat_interleave(partition.train.sizes)
    target = partition.targets.cpu()[partition.train.samples].long()
    known = target != IGNORE
    present[client[known] * classes + target[known]] = True
    return ~present.view(len(partition), classes)


def _all(split: Split) -> Tensor:
    return torch.arange(len(split))


def _batches(
    data: Data, split: Split, size: int, device: torch.device, samples: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in in_batches(samples, size):
        yield data.batch(split, batch, device=device)
