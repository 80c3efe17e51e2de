"""What a sub-model costs a device: parameters, bytes on the wire, multiply-adds, memory for training.

Parameters and bytes follow from the plan alone; operations and activations are measured (`measurement.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from torch import Tensor, nn

from fedwidth.core.index import Index
from fedwidth.core.measurement import measure
from fedwidth.core.narrow import narrow, skeleton
from fedwidth.errors import CapacityError, OptionError
from fedwidth.plan import Plan

CAPACITIES = (1, Fraction(1, 2), Fraction(1, 4), Fraction(1, 8), Fraction(1, 16))

PASSES_OF_A_STEP = 3
"""A sample costs three forward passes: one forward, and about two for the gradients."""


@dataclass(frozen=True)
class Cost:
    """The cost of one sub-model. All are whole numbers, except in an `average`."""

    capacity: float | Fraction
    parameters: float
    """The number of parameters; tied tensors count once."""
    bytes: float
    """Bytes of the parameters. A round sends those that are trained down and again up. A paper's MB is 2**20 bytes."""
    buffer_bytes: float
    """Bytes of the buffers, such as running statistics."""
    macs: float
    """Multiply-adds of convolutions and matrix products in one forward pass of one sample."""
    operations: float
    """Operations as FedRolex Table 7 counts them: one for each multiply-add of a convolution, two for each of a matrix
    product, and four for each normalised element."""
    activation_bytes: float
    """Bytes that training keeps for the backward pass of one sample, parameters apart."""
    share: float
    """The share of the full model's parameters."""
    frozen_bytes: float = 0
    """Bytes of the parameters that are never trained: a device is sent them once, needs no gradients or moments for
    them, and sends none of them back."""
    resent_bytes: float = 0
    """Of these, bytes that a round sends all the same, because which units of them a device holds may change."""
    spared_macs: float = 0
    """Of the multiply-adds of a backward pass, those that frozen layers spare."""

    @property
    def step_macs(self) -> float:
        """Multiply-adds of training with one sample: one pass forward, and about two for the gradients."""
        return PASSES_OF_A_STEP * self.macs - self.spared_macs

    @property
    def trained_bytes(self) -> float:
        """Bytes of the parameters that are trained."""
        return self.bytes - self.frozen_bytes

    @property
    def bytes_down(self) -> float:
        """Bytes that a round sends to the device: what is trained, buffers, and slices of what is frozen."""
        return self.trained_bytes + self.resent_bytes + self.buffer_bytes

    @property
    def bytes_up(self) -> float:
        """Bytes that the device sends back."""
        return self.trained_bytes + self.buffer_bytes

    def memory(self, *, batch: int = 1, moments: int = 1) -> float:
        """Bytes that training needs: weights, gradients, moments of the optimiser (SGD 0 or 1, Adam 2), activations."""
        trained = self.trained_bytes * (1 + moments)
        return self.bytes + trained + self.buffer_bytes + self.activation_bytes * batch


def cost(
    model: nn.Module,
    plan: Plan,
    example_inputs: Any,
    capacities: Sequence[float | Fraction] = CAPACITIES,
    *,
    rounding: str = "floor",
) -> list[Cost]:
    """The cost of the sub-model of each capacity, in the order given."""
    if isinstance(capacities, (str, int, float, Fraction)):
        raise OptionError(f"capacities are a list, such as [1, 0.5], not {capacities!r}")
    full = count_parameters(plan, {})
    return [cost_at(model, plan, example_inputs, plan.counts(c, rounding), capacity=c, full=full) for c in capacities]


def average(costs: Sequence[Cost]) -> Cost:
    """The mean of each number over the costs, as in the middle column of FedRolex Table 7."""
    if not costs:
        raise OptionError("the average cost needs at least one sub-model")
    return Cost(**{field.name: sum(getattr(c, field.name) for c in costs) / len(costs) for field in fields(Cost)})


def capacity_for(
    model: nn.Module,
    plan: Plan,
    example_inputs: Any,
    *,
    parameters: float | None = None,
    bytes: float | None = None,
    macs: float | None = None,
    memory: float | None = None,
    batch: int = 1,
    moments: int = 1,
    choices: Sequence[float | Fraction] = CAPACITIES,
    rounding: str = "floor",
) -> float | Fraction:
    """The largest capacity whose sub-model fits every budget a device states.

    `memory` is what training may use for batches of `batch` samples; see `Cost.memory`.
    """
    stated = {"parameters": parameters, "bytes": bytes, "macs": macs, "memory": memory}
    budgets = {name: budget for name, budget in stated.items() if budget is not None}
    if not budgets:
        raise OptionError("state at least one budget: parameters, bytes, macs or memory")
    if not choices:
        raise OptionError("choices must name at least one capacity")
    for capacity in sorted(choices, reverse=True):
        (found,) = cost(model, plan, example_inputs, [capacity], rounding=rounding)
        needs = {"parameters": found.parameters, "bytes": found.bytes, "macs": found.macs}
        needs["memory"] = found.memory(batch=batch, moments=moments)
        if all(needs[name] <= budget for name, budget in budgets.items()):
            return capacity
    short, budget = next((name, budget) for name, budget in budgets.items() if not needs[name] <= budget)
    raise CapacityError(
        f"no capacity fits: the smallest, {capacity}, needs {needs[short]:,.0f} {short}, but the budget is {budget:,}"
    )


def cost_at(
    model: nn.Module,
    plan: Plan,
    example_inputs: Any,
    counts: Mapping[str, int],
    *,
    capacity: float | Fraction,
    full: int,
) -> Cost:
    """The cost of the sub-model that keeps counts[g] units of group g."""
    parameters = count_parameters(plan, counts)

    def filled() -> nn.Module:
        return narrow(model, plan, Index.of_units(plan, {name: range(count) for name, count in counts.items()}))

    found = measure(lambda: skeleton(model, plan, counts), filled, example_inputs)
    tensors = dict(model.named_parameters(remove_duplicate=False))
    frozen = {name: tensor for name, tensor in tensors.items() if not tensor.requires_grad}
    shapes = plan.narrow_shapes(counts)
    sliced = {name: tensor for name, tensor in frozen.items() if shapes[name] != plan.shapes[name]}
    return Cost(
        capacity=capacity,
        parameters=parameters,
        bytes=count_bytes(plan, counts, tensors),
        buffer_bytes=count_bytes(plan, counts, dict(model.named_buffers(remove_duplicate=False))),
        macs=found.macs,
        operations=found.operations,
        activation_bytes=found.activation_bytes,
        share=parameters / full if full else 1.0,
        frozen_bytes=count_bytes(plan, counts, frozen),
        resent_bytes=count_bytes(plan, counts, sliced),
    )


def cost_of(make: Callable[[], nn.Module], plan: Plan, example_inputs: Any, *, capacity: float | Fraction) -> Cost:
    """The cost of a sub-model that is no slice of the model; `make` makes its module."""
    made = make()
    parameters = sum(tensor.numel() for tensor in made.parameters())
    frozen = (tensor for tensor in made.parameters() if not tensor.requires_grad)
    sizes = [sum(t.numel() * t.element_size() for t in ts) for ts in (made.parameters(), made.buffers(), frozen)]
    found = measure(lambda: made, make, example_inputs)
    return Cost(
        capacity=capacity,
        parameters=parameters,
        bytes=sizes[0],
        buffer_bytes=sizes[1],
        macs=found.macs,
        operations=found.operations,
        activation_bytes=found.activation_bytes,
        share=parameters / count_parameters(plan, {}),
        frozen_bytes=sizes[2],
        resent_bytes=sizes[2],
    )


def count_parameters(plan: Plan, counts: Mapping[str, int]) -> int:
    """How many elements the narrow parameters have; tied ones count once."""
    shapes = plan.narrow_shapes(counts)
    return sum(math.prod(shapes[name]) for name in plan.parameters if name not in plan.tied)


def count_bytes(plan: Plan, counts: Mapping[str, int], tensors: Mapping[str, Tensor]) -> int:
    """How many bytes these tensors have in their narrow shapes; tied ones count once."""
    shapes = plan.narrow_shapes(counts)
    return sum(
        math.prod(shapes[name]) * tensor.element_size() for name, tensor in tensors.items() if name not in plan.tied
    )
