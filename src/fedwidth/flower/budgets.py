"""From what a device can spend to the width it trains.

What a round sends, down and up together, as it is on the wire:

    bytes = copies * (bytes of the sub-model) + TENSOR_BYTES * copies / 2 * (number of tensors) + ROUND_BYTES

`copies` is 2, one down and one up, and more where a method sends or reports beside the sub-model. The other terms are
what Flower, HTTP and TLS need: every tensor is two objects with a request each, there and back, and a device that waits
asks for messages every three seconds. The two numbers are fitted to one measurement of a deployment: the quick start at
capacity 1/4, 15.6 kB in 23 tensors, took 37 kB down and 97 kB up. `benchmarks/wire.py` measures others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedwidth.core.cost import capacity_for
from fedwidth.errors import CapacityError

BUDGETS = ("memory", "bytes", "operations")
TENSOR_BYTES = 4_200
"""For each tensor of a sub-model that goes down and comes up, whatever its size."""
POLLING_SECONDS = 30
"""How long a round is taken to last: a device that waits asks for messages all the time."""
ROUND_BYTES = 10_000
"""For each round: messages about it, and polling for so long."""


def bytes_beside(parts: Any) -> tuple[int, int]:
    """How often a round of this experiment sends a sub-model, and the bytes it takes beside those tensors."""
    local = parts.trainer.rule.local
    sends = parts.trainer.example_sends(parts.first_server().state).values()
    copies = 2 + sum(isinstance(value, Mapping) for value in sends) + len(local.adds) + len(local.own)
    own = [name for name in parts.plan.shapes if name not in parts.plan.tied]
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in parts.model.buffers())
    return copies, TENSOR_BYTES * copies * len(own) // 2 + ROUND_BYTES + 2 * buffers


def budgets_to_capacity(budgets: Mapping[str, float], parts: Any, *, passes: float) -> float:
    """The largest of the recipe's capacities that a node can pay for; `passes` are the samples it sees in a round.

    `bytes` are what a round sends down and up, on the wire; `operations` the multiply-adds of its training, three
    forward passes a sample; `memory` what training needs (weights, gradients, the optimiser's moments, activations of
    one batch) beside the processes themselves.
    """
    training = parts.settings.training
    moments = 2 if training.optimiser != "sgd" else int(training.momentum > 0)
    copies, beside = bytes_beside(parts)
    if budgets.get("bytes", beside + 1) <= beside:
        raise CapacityError(
            f"no capacity fits: a round sends {beside:,} bytes beside the sub-model, but the budget is"
            f" {budgets['bytes']:,.0f}"
        )
    return float(
        capacity_for(
            parts.model,
            parts.plan,
            parts.data.example(),
            memory=budgets.get("memory"),
            bytes=(budgets["bytes"] - beside) / copies if "bytes" in budgets else None,
            macs=budgets["operations"] / (3 * passes) if "operations" in budgets else None,
            batch=training.batch_size,
            moments=moments,
            choices=parts.capacities.values,
        )
    )
