"""Evaluation of many models of one shape at once: `scores.score` over stacked states.

Each batch of samples goes through all models with one call. Only models without batch norm are stacked: the statistics
of the others are collected model by model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from fedwidth.data import IGNORE, Data, Partition, Split
from fedwidth.errors import DataError
from fedwidth.evaluation.scores import LocalScores, Score, absent_by_client, accuracy_by_class, owners
from fedwidth.training.loss import mask_logits

MAX_ANSWERS = {"cpu": 2**14, "cuda": 2**20}
"""Samples times models that are answered at a time."""


class PackedEvaluation:
    """Evaluates models of one shape, with what all evaluations share kept on the device."""

    def __init__(self, model: nn.Module, data: Data, *, mask: str) -> None:
        self.model, self.data, self.mask = model, data, mask
        self.device = next(model.parameters()).device
        self._tests: dict[int, _Tests] = {}

    @torch.no_grad()
    def scores(
        self, states: Mapping[str, Tensor], split: Split, samples: Tensor | None = None, *, by_class: bool = False
    ) -> list[Score]:
        """Of every model on a split, or on these samples of it; `states` are stacked, [models, …] each."""
        samples = torch.arange(len(split)) if samples is None else samples
        models = len(next(iter(states.values())))
        right = torch.zeros(models, dtype=torch.long, device=self.device)
        loss = torch.zeros(models, dtype=torch.float64, device=self.device)
        answered = []
        for logits, targets in self._answers(states, split, samples):
            valid = targets != IGNORE
            hits = (logits.argmax(-1) == targets) & valid
            right += hits.flatten(1).sum(1)
            if by_class and targets.dim() == 1:
                answered.append(hits.long())
            answers = targets.expand(logits.shape[:-1])
            parts = functional.cross_entropy(logits.flatten(0, -2), answers.flatten(), reduction="none")
            loss += parts.view(len(logits), -1).double().sum(1)
        counted = int((split.targets[samples.to(split.targets.device)] != IGNORE).sum())
        if not counted:
            raise DataError(f"data set '{self.data.name}' has no target to evaluate on")
        pairs = torch.stack([right.double(), loss], dim=1).tolist()
        classes: list[list[float | None] | None] = [None] * models
        if answered:
            asked = split.targets[samples.to(split.targets.device)].cpu().long()
            classes = [accuracy_by_class(own, asked, self.data.classes) for own in torch.cat(answered, 1).cpu()]
        return [
            Score(hits / counted, total / counted, counted, own)
            for (hits, total), own in zip(pairs, classes, strict=True)
        ]

    @torch.no_grad()
    def local(self, states: Mapping[str, Tensor], partition: Partition) -> list[LocalScores]:
        """Accuracies of every model on the clients' own test data."""
        if id(partition) not in self._tests:
            self._tests[id(partition)] = _Tests(partition, self.data, self.mask, self.device)
        tests = self._tests[id(partition)]
        models = len(next(iter(states.values())))
        hits = torch.zeros(models, len(partition), dtype=torch.long, device=self.device)
        done = 0
        for logits, targets in self._answers(states, partition.test_split(self.data), partition.test.samples):
            part = slice(done, done + len(targets))
            done += len(targets)
            if targets.dim() == 1 and tests.absent is not None:
                logits = mask_logits(logits, tests.absent[tests.owner[part]], self.mask)
            right = (logits.argmax(-1) == targets) & (targets != IGNORE)
            hits.index_add_(1, tests.owner[part], right.flatten(2).sum(-1) if targets.dim() > 1 else right.long())
        return [LocalScores.of(own, tests.counted) for own in hits.cpu()]

    def _answers(self, states: Mapping[str, Tensor], split: Split, samples: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits [models, batch, …] and targets of these samples, batch by batch."""
        models = len(next(iter(states.values())))
        size = max(1, MAX_ANSWERS[self.device.type] // models)

        def answer(state: dict[str, Tensor], inputs: Tensor) -> Tensor:
            logits: Tensor = functional_call(self.model, state, (inputs,))
            return logits

        self.model.eval()
        for chosen in torch.split(samples, size):
            inputs, targets = self.data.batch(split, chosen.to(split.inputs.device), device=self.device)
            yield vmap(answer, in_dims=(0, None))(dict(states), inputs), targets


class _Tests:
    """Whose the test samples of a partition are."""

    def __init__(self, partition: Partition, data: Data, mask: str, device: torch.device) -> None:
        self.owner = owners(partition).to(device)
        targets = partition.test_split(data).targets.cpu()[partition.test.samples]
        valid = (targets != IGNORE).view(len(targets), -1).sum(1)
        self.counted = torch.zeros(len(partition), dtype=torch.long).index_add_(0, owners(partition), valid)
        absent = absent_by_client(partition, data.classes, mask) if targets.dim() == 1 else None
        self.absent = None if absent is None else absent.to(device)


def stack_states(states: Sequence[Mapping[str, Tensor]], tied: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors of several states, one below the other; tied ones once."""
    return {name: torch.stack([state[name] for state in states]) for name in states[0] if name not in tied}
