"""What a client sends where its model stays with it: answers, tensors by name.

Under `SAMPLES` are the numbers of the samples it answers for; other answers have a row for each of them, or are a few
weights. They are never added up: a sum of them holds those of one client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedwidth.core.updates import Update, check_finite
from fedwidth.errors import SelectionError, UpdateError

ANSWERS, SAMPLES = "answers", "samples"
"""The name of the report of an update that holds a client's answers, and of the numbers of samples among them."""


class AnswerSum:
    """The answers of one client of a round, in the place where other parts have the mean of sub-models."""

    def __init__(self) -> None:
        self.answers: Mapping[str, Tensor] = {}
        """The answers by name."""
        self.weight, self.clients = 0.0, 0
        self.mean: dict[str, Tensor] = {}
        self.reports: dict[str, Any] = {}

    def add(self, update: Update, *, copy: bool = True) -> None:
        """Take the answers of an update; those that are refused leave the sum as it was."""
        answers = update.reports.get(ANSWERS, {})
        if self.clients:
            raise SelectionError(f"{update.who} answers where another client has: answers are not added up")
        if SAMPLES not in answers:
            raise UpdateError(
                f"{update.who} must say under '{SAMPLES}' what it answers for, not only {sorted(answers)}"
            )
        check_finite(answers, update.who)
        self.answers = {name: tensor.detach().clone() if copy else tensor for name, tensor in answers.items()}
        self.weight, self.clients = update.weight, 1

    @property
    def rows(self) -> int:
        """How many samples the client answered for."""
        return len(self.answers[SAMPLES]) if self.answers else 0

    @property
    def bytes(self) -> int:
        """What the answers take on the wire."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.answers.values())
