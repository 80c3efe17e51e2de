"""Finds the capacity that a device can pay for, from what it states that it can spend.

What a round sends, down and up together, as it is on the wire:

    bytes = copies * (bytes of the sub-model) + TENSOR_BYTES * copies / 2 * (number of tensors) + ROUND_BYTES

`copies` is 2, one down and one up, and more where a method sends or reports beside the sub-model. The other terms are
what Flower, HTTP and TLS need: every tensor is two objects with a request each, there and back, and a device that waits
asks for messages every three seconds. What a device needs of memory:

    memory = PROCESS_BYTES + (weights, gradients, the optimiser's moments, activations of one batch)

The constants of the wire are fitted by least squares to a deployment of four models, of 4 to 58 tensors, at three
capacities each, whose rounds took 16 to 53 seconds (`benchmarks/wire.py`). The formula is off by -7 to +12 % there,
most for the sub-models below 20 kB.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedwidth.core.cost import capacity_for
from fedwidth.errors import CapacityError
from fedwidth.experiment import Experiment

BUDGETS = ("memory", "bytes", "operations")
"""What a device may state that it can spend: bytes of memory, bytes sent in a round, multiply-adds in a round."""
TENSOR_BYTES = 3_800
"""What a tensor takes on the wire beside its own bytes, to go down and to come up, whatever its size."""
POLLING_SECONDS = 30
"""How long a round is taken to last: a device that waits asks for messages all the time."""
ROUND_BYTES = 38_000
"""What a round takes on the wire beside its tensors: messages about it, and polling for so long."""
PROCESS_BYTES = 500_000_000
"""What a device's processes take of memory before they train anything, pages that they have in common counted once: the
trainer with PyTorch, and Flower's processes, which are forks of one (`benchmarks/device_memory.py`)."""


def bytes_beside(experiment: Experiment) -> tuple[int, int]:
    """How often a round sends a sub-model, down and up, and how many bytes it sends beside these tensors."""
    local = experiment.trainer.rule.local
    sends = experiment.trainer.example_sends(experiment.first_server().state).values()
    copies = 2 + sum(isinstance(value, Mapping) for value in sends) + len(local.adds) + len(local.own)
    own = [name for name in experiment.plan.shapes if name not in experiment.plan.tied]
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in experiment.model.buffers())
    return copies, TENSOR_BYTES * copies * len(own) // 2 + ROUND_BYTES + 2 * buffers


def budgets_to_capacity(budgets: Mapping[str, float], experiment: Experiment, *, passes: float) -> float:
    """The largest of the recipe's capacities that a device can pay for; `CapacityError` where it can pay for none.

    `bytes` is what a round may send down and up, on the wire; `operations` is how many multiply-adds its training may
    take, three forward passes for each of the `passes` samples that it trains on; `memory` is what all of the device's
    processes may take together.
    """
    training = experiment.settings.training
    moments = 2 if training.optimiser != "sgd" else int(training.momentum > 0)
    copies, beside = bytes_beside(experiment)
    fixed = {
        "bytes": (beside, f"a round sends {beside:,} bytes beside the sub-model"),
        "memory": (PROCESS_BYTES, f"a device's processes take {PROCESS_BYTES:,} bytes of memory before they train"),
    }
    left = dict(budgets)
    for name, (needed, why) in fixed.items():
        if name in left and left[name] <= needed:
            raise CapacityError(f"no capacity fits: {why}, but the budget is {left[name]:,.0f}")
        if name in left:
            left[name] -= needed
    try:
        found = capacity_for(
            experiment.model,
            experiment.plan,
            experiment.data.example(),
            memory=left.get("memory"),
            bytes=left["bytes"] / copies if "bytes" in left else None,
            macs=left["operations"] / (3 * passes) if "operations" in left else None,
            batch=training.batch_size,
            moments=moments,
            choices=experiment.capacities.values,
        )
    except CapacityError as error:
        reasons = [why for name, (_, why) in fixed.items() if name in left]
        raise CapacityError("; ".join([str(error), *reasons])) from None
    return float(found)
