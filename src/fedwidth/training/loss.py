"""The loss of a batch: a client's pass through its model, and cross entropy over the classes it has."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedwidth.data import IGNORE
from fedwidth.methods import ClientPass
from fedwidth.training.rule import Rule


@dataclass
class Pass:
    """A client's pass through its model; engines that train one client at a time also know narrower sub-models."""

    forward: Callable[[Tensor], Tensor]
    absent: Tensor | None
    """True for the classes the client lacks, where their logits are masked."""
    mask: str
    options: Mapping[str, Any]
    capacity: float

    def logits(self, inputs: Tensor) -> Tensor:
        """The model's answer."""
        return self.forward(inputs)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy, with logits of absent classes masked as the settings say."""
        return masked_loss(logits, targets, self.absent, self.mask)

    def mean(self, values: Tensor, targets: Tensor) -> Tensor:
        """The mean of one value for each target, over the targets that count."""
        counted = (targets != IGNORE).to(values.dtype)
        return (values * counted).sum() / counted.sum()

    def narrower(self, width: float, inputs: Tensor) -> Tensor:
        """Only clients that train one at a time have narrower sub-models."""
        raise NotImplementedError("a rule whose loss asks for narrower sub-models must not be called steady")

    def network(self) -> nn.Module:
        """Only clients that train one at a time have a module of their own."""
        raise NotImplementedError("a rule whose loss looks at the client's module must not be called steady")

    def generator(self, purpose: str) -> np.random.Generator:
        """Only clients that train one at a time draw."""
        raise NotImplementedError("a rule whose loss draws must not be called steady")


def loss_of(rule: Rule, client: ClientPass, inputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of a batch."""
    if rule.local.loss is not None:
        return rule.local.loss(client, inputs, targets)
    return client.loss(client.logits(inputs), targets)


def masked_loss(logits: Tensor, targets: Tensor, absent: Tensor | None, mask: str) -> Tensor:
    """Cross entropy over the last axis, ignoring targets of -100 (ended text)."""
    logits = mask_logits(logits, absent, mask)
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def mask_logits(logits: Tensor, absent: Tensor | None, mask: str) -> Tensor:
    """Logits of absent classes set to 0 (as HeteroFL and FedRolex publish it) or to -inf; classes are the last axis."""
    if absent is None:
        return logits
    return logits.masked_fill(absent, 0.0 if mask == "zero" else -math.inf)


def absent_classes(labels: Tensor, classes: int, mask: str, device: torch.device) -> Tensor | None:
    """True for classes the client has no sample of; None where nothing is masked."""
    if mask == "none" or len(labels) == classes:
        return None
    absent = torch.ones(classes, dtype=torch.bool, device=device)
    absent[labels.to(device)] = False
    return absent
