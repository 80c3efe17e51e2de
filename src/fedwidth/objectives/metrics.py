"""The metrics there are, by the kind of targets they are for."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwidth.data import IGNORE
from fedwidth.objectives.losses import aligned
from fedwidth.objectives.metric import ACCURACY, Measure, Metric


def class_hits(output: Tensor, targets: Tensor) -> Tensor:
    """Right answers and answers of each sample; classes are the last axis of the output."""
    valid = targets != IGNORE
    hits = (output.argmax(-1) == targets) & valid
    return _per_sample(hits, valid)


def pixel_hits(output: Tensor, targets: Tensor) -> Tensor:
    """Right answers and answers of each sample; classes are the second axis of the output."""
    return class_hits(output.movedim(1, -1), targets)


def overlaps(output: Tensor, targets: Tensor) -> Tensor:
    """Intersection and union of what is predicted and what is true, for each class of each sample, and pixels."""
    classes = output.shape[1]
    valid = targets != IGNORE
    kinds = torch.arange(classes, device=output.device)
    predicted = (output.argmax(1)[..., None] == kinds) & valid[..., None]
    true = (targets[..., None] == kinds) & valid[..., None]
    both, either = (part.flatten(1, -2).sum(1) for part in (predicted & true, predicted | true))
    return torch.cat([both, either, valid.flatten(1).sum(1, keepdim=True)], dim=1)


def mean_overlap(sums: Tensor) -> Tensor:
    """The mean, over classes that occur, of intersection over union.

    >>> mean_overlap(torch.tensor([2, 0, 1, 4, 0, 2, 9]))
    tensor(0.5000, dtype=torch.float64)
    """
    classes = (sums.shape[-1] - 1) // 2
    both, either = sums[..., :classes].double(), sums[..., classes : 2 * classes]
    return torch.where(either > 0, both / either, torch.nan).nanmean(-1)


def label_outcomes(output: Tensor, targets: Tensor) -> Tensor:
    """Labels found, wrongly found and missed, right answers, and answers of each sample; a label is found above 0."""
    output, targets, valid = aligned(output, targets)
    found, true = output > 0, targets > 0.5
    parts = (found & true, found & ~true, ~found & true, found == true)
    counted = [*(part & valid for part in parts), valid]
    return torch.stack([_at_least_two(part).flatten(1).sum(1) for part in counted], dim=1)


def squares(output: Tensor, targets: Tensor) -> Tensor:
    """Squared errors, and how many, of each sample."""
    output, targets, valid = aligned(output, targets)
    return _per_sample((output - targets).double().square() * valid, valid)


def absolutes(output: Tensor, targets: Tensor) -> Tensor:
    """Absolute errors, and how many, of each sample."""
    output, targets, valid = aligned(output, targets)
    return _per_sample((output - targets).double().abs() * valid, valid)


ROUNDING = 64 * torch.finfo(torch.float64).eps
"""The share of sums of squares that rounding them may come to: by less than that targets do not differ."""


def moments(output: Tensor, targets: Tensor) -> Tensor:
    """Squared errors, targets, their squares, and how many, of each column of targets, and how many of all, of each
    sample. Targets of more dimensions, as those of pixels, are one column.
    """
    output, targets, valid = aligned(output, targets)
    true = targets.double() * valid
    error = (output - targets).double().square() * valid
    columns = [_at_least_two(part) for part in (error, true, true**2, valid)]
    if targets.dim() > 2:
        columns = [part.flatten(1).sum(1, keepdim=True) for part in columns]
    return torch.cat([*columns, columns[-1].sum(1, keepdim=True)], dim=1)


def determination(sums: Tensor) -> Tensor:
    """R², the mean over columns: 1 less the squared errors over the squared distances of targets from their mean.

    As scikit-learn has it, also for a column whose targets are all equal: 1 where they are met, else 0.

    >>> determination(torch.tensor([1.0, 6.0, 14.0, 3.0, 3.0]))
    tensor(0.5000, dtype=torch.float64)
    """
    error, total, square, number = sums[..., :-1].double().chunk(4, -1)
    distance = square - total**2 / number
    equal = distance <= ROUNDING * square
    found = torch.where(equal, (error == 0).double(), 1 - error / distance)
    return torch.where(number > 0, found, torch.nan).nanmean(-1)


def _per_sample(first: Tensor, second: Tensor) -> Tensor:
    """Two numbers for each sample, summed over all its targets."""
    return torch.stack([_at_least_two(part).flatten(1).sum(1) for part in (first, second)], dim=-1)


def _at_least_two(values: Tensor) -> Tensor:
    return values[:, None] if values.dim() == 1 else values


def root(sums: Tensor) -> Tensor:
    """The square root of a mean."""
    return (sums[..., 0].double() / sums[..., 1]).sqrt()


def harmonic(sums: Tensor) -> Tensor:
    """F1 over all labels of all samples: 2 found / (2 found + wrongly found + missed)."""
    found, wrong, missed = sums[..., :3].double().unbind(-1)
    return 2 * found / (2 * found + wrong + missed)


def answers(sums: Tensor) -> Tensor:
    """The share of right answers about labels."""
    return sums[..., 3].double() / sums[..., 4]


CLASS_METRICS = (Metric(ACCURACY, class_hits),)
PIXEL_METRICS = (
    Metric(Measure("mean_iou", "mean intersection over union", percent=True), overlaps, mean_overlap),
    Metric(Measure("pixel_accuracy", "pixel accuracy", percent=True), pixel_hits),
)
LABEL_METRICS = (
    Metric(Measure("f1", "F1", percent=True), label_outcomes, harmonic),
    Metric(Measure("label_accuracy", "label accuracy", percent=True), label_outcomes, answers),
)
NUMBER_METRICS = (
    Metric(Measure("mse", "mean squared error", higher_is_better=False), squares),
    Metric(Measure("rmse", "root mean squared error", higher_is_better=False), squares, root),
    Metric(Measure("mae", "mean absolute error", higher_is_better=False), absolutes),
    Metric(Measure("r2", "R²"), moments, determination),
)
