"""How the clients of a run train: the local rule of its method, with the options it was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedwidth.methods import Local, Method


@dataclass(frozen=True)
class Rule:
    """How the clients of a run train: the method's local rule with its options."""

    local: Local
    options: Mapping[str, Any]
    title: str

    @classmethod
    def of(cls, method: Method) -> Rule:
        """The rule of a method; where it has none, plain training."""
        return cls(method.local or Local(), method.values, method.title)

    @property
    def keeps_start(self) -> bool:
        """Whether the weights a client began with are needed after its first step."""
        return self.local.gradient is not None or self.local.reports is not None

    @property
    def sends_or_reports(self) -> bool:
        """Whether clients are sent, or report, more than their sub-models."""
        return self.local.sends is not None or self.local.reports is not None

    @property
    def probes(self) -> bool:
        """Whether clients first compute the gradient over all their data, without taking a step."""
        return self.local.full_gradient(self.options)

    def equals(self, other: Rule) -> bool:
        """Whether the clients of two runs train in the same way."""
        return self.local == other.local and (self.local == Local() or dict(self.options) == dict(other.options))


PLAIN = Rule(Local(), {}, "plain training")
