"""From what a device can spend to the width it trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedwidth.cost import capacity_for

BUDGETS = ("memory", "bytes", "operations")


def budgets_to_capacity(budgets: Mapping[str, float], parts: Any, *, passes: float) -> float:
    """The largest of the recipe's capacities that a node can pay for; `passes` are the samples it sees in a round.

    `bytes` are what a round sends down and up; `operations` the multiply-adds of its training, three forward passes
    a sample; `memory` what training needs (weights, gradients, the optimiser's moments, activations of one batch).
    """
    training = parts.settings.training
    moments = 2 if training.optimiser != "sgd" else int(training.momentum > 0)
    return float(
        capacity_for(
            parts.model,
            parts.plan,
            parts.data.example(),
            memory=budgets.get("memory"),
            bytes=budgets["bytes"] / 2 if "bytes" in budgets else None,
            macs=budgets["operations"] / (3 * passes) if "operations" in budgets else None,
            batch=training.batch_size,
            moments=moments,
            choices=parts.capacities.values,
        )
    )
