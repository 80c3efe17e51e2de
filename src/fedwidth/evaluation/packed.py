"""Evaluation of many models of one shape at once: `scores.score` over stacked states.

Each batch of samples goes through all models with one call. Only models without batch norm are stacked: the statistics
of the others are collected model by model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedwidth.data import Data, Partition, Split
from fedwidth.data.trees import count
from fedwidth.errors import DataError
from fedwidth.evaluation.scores import (
    LocalScores,
    Score,
    absent_by_client,
    accuracy_by_class,
    has_one_label,
    owners,
)
from fedwidth.objectives import CLASSIFICATION, Objective, arguments
from fedwidth.objectives.output import each_of
from fedwidth.training.loss import mask_logits

MAX_ANSWERS = {"cpu": 2**14, "cuda": 2**20}
"""Samples times models that are answered at a time."""


class PackedEvaluation:
    """Evaluates models of one shape, with what all evaluations share kept on the device."""

    def __init__(self, model: nn.Module, data: Data, *, mask: str, objective: Objective = CLASSIFICATION) -> None:
        self.model, self.data, self.mask, self.objective = model, data, mask, objective
        self.device = next(model.parameters()).device
        self._tests: dict[int, _Tests] = {}

    @torch.no_grad()
    def scores(
        self, states: Mapping[str, Tensor], split: Split, samples: Tensor | None = None, *, by_class: bool = False
    ) -> list[Score]:
        """The score of every model on a split, or on these samples of it; `states` are stacked, [models, …] each."""
        samples = torch.arange(len(split)) if samples is None else samples
        models, metric = len(next(iter(states.values()))), self.objective.metric
        loss = torch.zeros(models, dtype=torch.float64, device=self.device)
        targets_counted = torch.zeros((), dtype=torch.long, device=self.device)
        summed, answered, one_label = [], [], has_one_label(self.objective, split)
        for outputs, targets in self._answers(states, split, samples):
            counts = self._counts(outputs, targets)
            summed.append(counts.sum(1))
            if by_class and one_label:
                answered.append((outputs.argmax(-1) == targets).long())
            loss += self.objective.total_losses(outputs, targets)
            targets_counted += self.objective.number(targets)
        sums = torch.stack(summed).sum(0)
        if not int(sums[0, -1]):
            raise DataError(f"data set '{self.data.name}' has no target to evaluate on")
        classes: list[list[float | None] | None] = [None] * models
        if answered:
            asked = split.labels[samples.to(split.labels.device)].cpu().long()
            classes = [accuracy_by_class(own, asked, self.data.classes) for own in torch.cat(answered, 1).cpu()]
        losses = (loss / targets_counted.clamp(min=1)).tolist()
        found = zip(metric.of(sums).tolist(), losses, sums[:, -1].tolist(), classes, strict=True)
        return [Score(value, mean, int(number), own) for value, mean, number, own in found]

    @torch.no_grad()
    def local(self, states: Mapping[str, Tensor], partition: Partition) -> list[LocalScores]:
        """The metric of every model on the clients' own test data."""
        if id(partition) not in self._tests:
            self._tests[id(partition)] = _Tests(partition, self.data, self.mask, self.objective, self.device)
        tests, sums, done = self._tests[id(partition)], None, 0
        for outputs, targets in self._answers(states, partition.test_split(self.data), partition.test.samples):
            part = slice(done, done + count(targets))
            done += count(targets)
            if tests.absent is not None:
                outputs = mask_logits(outputs, tests.absent[tests.owner[part]], self.mask)
            counts = self._counts(outputs, targets)
            if sums is None:
                sums = counts.new_zeros(len(counts), len(partition), counts.shape[-1])
            sums.index_add_(1, tests.owner[part], counts)
        if sums is None:  # nobody has any
            sums = torch.zeros(len(next(iter(states.values()))), len(partition), 2)
        return [LocalScores.of(own, self.objective.metric) for own in sums.cpu()]

    def _counts(self, outputs: Any, targets: Any) -> Tensor:
        """The metric's numbers for every model and sample [models, samples, numbers]."""
        return torch.stack([self.objective.metric.counts(output, targets) for output in each_of(outputs)])

    def _answers(self, states: Mapping[str, Tensor], split: Split, samples: Tensor) -> Iterator[tuple[Any, Any]]:
        """Outputs [models, batch, …] and targets of these samples, batch by batch."""
        models = len(next(iter(states.values())))
        size = max(1, MAX_ANSWERS[self.device.type] // models)

        def answer(state: dict[str, Tensor], inputs: Any) -> Any:
            return self.objective.output(functional_call(self.model, state, *arguments(inputs)))

        self.model.eval()
        for chosen in torch.split(samples, size):
            inputs, targets = self.data.batch(split, chosen, device=self.device)
            yield vmap(answer, in_dims=(0, None))(dict(states), inputs), targets


class _Tests:
    """Whose the test samples of a partition are, and which classes their owners lack."""

    def __init__(self, partition: Partition, data: Data, mask: str, objective: Objective, device: torch.device) -> None:
        self.owner = owners(partition).to(device)
        one_label = has_one_label(objective, partition.test_split(data))
        absent = absent_by_client(partition, data.classes, mask) if one_label else None
        self.absent = None if absent is None else absent.to(device)


def stack_states(states: Sequence[Mapping[str, Tensor]], tied: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors of several states, one below the other; tied ones once."""
    return {name: torch.stack([state[name] for state in states]) for name in states[0] if name not in tied}
