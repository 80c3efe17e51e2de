"""Several models that answer together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def together(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of the probabilities that several models give to each class: logits, too.

    >>> both = together([torch.tensor([0.9, 0.1]).log(), torch.tensor([0.3, 0.7]).log()])
    >>> [round(float(share), 3) for share in both.exp()]
    [0.6, 0.4]
    """
    return torch.stack([each.log_softmax(-1) for each in logits]).logsumexp(0) - math.log(len(logits))


def choose_together(number: int, score: Callable[[Sequence[int]], float]) -> list[int]:
    """Which of so many models do well together: the best one, then whichever adds most, as long as one does.

    >>> worth = {(0,): 3, (1,): 2, (2,): 1, (0, 1): 3, (0, 2): 5, (0, 1, 2): 4}
    >>> choose_together(3, lambda some: worth[tuple(some)])
    [0, 2]
    """
    chosen: list[int] = []
    best = -math.inf
    while left := [each for each in range(number) if each not in chosen]:
        worth = {each: score(sorted([*chosen, each])) for each in left}
        found = max(left, key=lambda each: -math.inf if math.isnan(worth[each]) else worth[each])
        if chosen and not worth[found] > best:
            break
        best = worth[found]
        chosen.append(found)
    return sorted(chosen)


class Together(nn.Module):
    """Answers with the mean of the probabilities that its models give to each class."""

    def __init__(self, models: Sequence[nn.Module], logits: Callable[[Any], Tensor] = lambda answer: answer) -> None:
        """`logits` takes them out of what a model answers, where that is more than a tensor."""
        super().__init__()
        self.models, self.logits = nn.ModuleList(models), logits

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """What they answer together."""
        return together([self.logits(model(*inputs, **named)) for model in self.models])
