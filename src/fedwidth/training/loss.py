"""The loss of a batch: a client's pass through its model, and what the objective says of its answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedwidth.errors import OptionError
from fedwidth.methods import ClientPass
from fedwidth.objectives import Objective
from fedwidth.objectives.check import check_one_number
from fedwidth.training.rule import Rule

TARGETS = "targets"
"""The name of the targets of a batch that comes with rows of what the client was given."""


@dataclass
class Pass:
    """A client's pass through its model; engines that train one client at a time also know narrower sub-models."""

    forward: Callable[..., Any]
    absent: Tensor | None
    """True for the classes the client lacks, where their logits are masked."""
    mask: str
    options: Mapping[str, Any]
    capacity: float
    objective: Objective
    module: nn.Module
    """The module that holds the client's sub-model."""
    given: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)
    """What the client was given as it is, by name."""
    smoothing: float = field(default=0.0, kw_only=True)
    """The weight of label smoothing."""
    rate: float = field(default=0.0, kw_only=True)
    """The learning rate of the round."""
    rows: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)
    """What the client was given that has a row for each of its own samples: those of the batch at hand."""

    width: float = field(init=False)
    """The width that the coming step trains."""

    def __post_init__(self) -> None:
        self.width = self.capacity

    def logits(self, inputs: Any) -> Any:
        """What counts of the model's answer."""
        return self.objective.answer(self.forward, inputs)

    def loss(self, logits: Any, targets: Any) -> Tensor:
        """The objective's loss, with logits of absent classes masked and answers smoothed as the settings say."""
        plain = self.objective.loss(mask_logits(logits, self.absent, self.mask), targets)
        if not self.smoothing:
            return plain
        return plain.add(self.mean(divergence_from_uniform(logits), targets), alpha=self.smoothing)

    def mean(self, values: Tensor, targets: Any) -> Tensor:
        """The mean of one value for each target, over the targets that count."""
        return self.objective.mean(values, targets)

    def narrower(self, width: float, inputs: Any) -> Any:
        """Only clients that do not train in stacks have narrower sub-models."""
        raise NotImplementedError("a steady loss finds its narrower sub-models by the rule's `widths`")

    def network(self) -> nn.Module:
        """The module that holds the client's sub-model."""
        return self.module

    def repeated(self, step: Callable[..., Tensor], optimiser: Optimizer) -> Callable[..., Tensor]:
        """Only clients that train one at a time take steps of the rule's own."""
        raise NotImplementedError("a rule that takes steps of its own must not be called steady")

    def public_inputs(self, samples: Tensor) -> Any:
        """Only clients that train one at a time look at public samples."""
        raise NotImplementedError("a rule that looks at public samples must not be called steady")

    def own_samples(self, places: Tensor) -> tuple[Any, Any]:
        """Only clients that train one at a time look at their samples again."""
        raise NotImplementedError("a rule that looks at a client's samples must not be called steady")

    def number_of_samples(self) -> int:
        """Only clients that train one at a time look at their samples again."""
        raise NotImplementedError("a rule that looks at a client's samples must not be called steady")

    def generator(self, purpose: str) -> np.random.Generator:
        """Only clients that train one at a time draw."""
        raise NotImplementedError("a rule whose loss draws must not be called steady")


def loss_of(rule: Rule, client: ClientPass, inputs: Any, targets: Any) -> Tensor:
    """The loss of a batch, whose targets come `with_rows` where the rule says so; refuses what is no loss."""
    if rule.local.rows:
        client.rows = {name: rows for name, rows in targets.items() if name != TARGETS}
        targets = targets[TARGETS]
    if rule.local.loss is None:
        return client.loss(client.logits(inputs), targets)
    loss, name = rule.local.loss(client, inputs, targets), f"the loss of {rule.title} (Local(loss=…))"
    check_one_number(name, loss)
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise OptionError(f"{name} does not depend on the client's weights, so nothing would be learnt")
    return loss


def with_rows(rule: Rule, targets: Any, given: Mapping[str, Tensor], places: Tensor | None = None) -> Any:
    """The targets of a batch, with the rows of what the client was given for it: a dictionary, where a rule has such.

    `places` are those of the samples among the client's own; None: the rows are the batch's already.
    """
    if not rule.local.rows:
        return targets
    known = {name: given[name] for name in rule.local.rows if name in given}
    if places is not None:
        known = {name: rows[places.to(rows.device)] for name, rows in known.items()}
    return {TARGETS: targets, **known}


def mask_logits(logits: Any, absent: Tensor | None, mask: str) -> Any:
    """Logits of absent classes set to 0 (as HeteroFL and FedRolex publish it) or to -inf; classes are the last axis."""
    if absent is None:
        return logits
    return logits.masked_fill(absent, 0.0 if mask == "zero" else -math.inf)


def divergence_from_uniform(logits: Tensor) -> Tensor:
    """KL(uniform || answer) of each sample, the term of label smoothing; classes are the last axis.

    Logits of classes that the client lacks count as they are, so that what the model knows of them is not forgotten.

    >>> round(divergence_from_uniform(torch.tensor([0.9, 0.1]).log()).item(), 4)
    0.5108
    """
    return -logits.log_softmax(-1).mean(-1) - math.log(logits.shape[-1])


def absent_classes(labels: Tensor, classes: int, mask: str, device: torch.device) -> Tensor | None:
    """True for classes the client has no sample of; None where nothing is masked."""
    if mask == "none" or len(labels) == classes:
        return None
    absent = torch.ones(classes, dtype=torch.bool, device=device)
    absent[labels.to(device)] = False
    return absent
