"""The losses of the objectives there are: means over the targets that count, and for evaluation sums.

A whole number that does not count is `IGNORE`, any other not a number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map_only

HALVES = (torch.float16, torch.bfloat16)


def in_single_precision(output: Any) -> Any:
    """What a model returned, with tensors of half precision in single precision."""
    if isinstance(output, Tensor):
        return output.float() if output.dtype in HALVES else output
    return tree_map_only(Tensor, in_single_precision, output)


def cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy over the last axis."""
    return functional.cross_entropy(output.flatten(0, -2), targets.flatten())


def cross_entropy_sum(output: Tensor, targets: Tensor) -> Tensor:
    """The same, summed."""
    return functional.cross_entropy(output.flatten(0, -2), targets.flatten(), reduction="sum")


def cross_entropy_parts(output: Tensor, targets: Tensor) -> Tensor:
    """The same of several models [models, samples, …] at once: the sum of each, in double precision."""
    asked = targets.expand(output.shape[:-1])
    parts = functional.cross_entropy(output.flatten(0, -2), asked.flatten(), reduction="none")
    return parts.view(len(output), -1).double().sum(1)


def pixel_cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy over the second axis."""
    return functional.cross_entropy(output, targets)


def squared_error(output: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error."""
    output, targets, counted = aligned(output, targets)
    return ((output - targets) * counted).square().sum() / counted.sum()


def label_cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    """Binary cross entropy of every label, output being the logits."""
    output, targets, counted = aligned(output, targets)
    parts = functional.binary_cross_entropy_with_logits(output, targets, reduction="none")
    return (parts * counted).sum() / counted.sum()


def aligned(output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs and targets as numbers of one shape, 0 where a target does not count, and where targets count."""
    output = in_single_precision(output)
    targets = targets.to(output.dtype)
    missing = targets.isnan()
    return output.reshape(targets.shape), targets.masked_fill(missing, 0.0), ~missing
