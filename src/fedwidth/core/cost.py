"""What a sub-model costs a device: parameters, bytes on the wire, multiply-adds, memory for training.

Parameters and bytes follow from the plan alone. Operations and activations are counted in one pass through the narrow
module, on PyTorch's meta device where the model allows it (no arithmetic is done there), and are given per sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from fedwidth.core.index import Index
from fedwidth.core.narrow import narrow, skeleton
from fedwidth.errors import CapacityError, OptionError
from fedwidth.plan import Plan
from fedwidth.plan.isolation import at_least_two, batch_size, call

CAPACITIES = (1, Fraction(1, 2), Fraction(1, 4), Fraction(1, 8), Fraction(1, 16))
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Cost:
    """The cost of one sub-model. All are whole numbers, except in an `average`."""

    capacity: float | Fraction
    parameters: float
    """The number of parameters; tied tensors count once."""
    bytes: float
    """Bytes of the parameters, which a round sends down and again up. A paper's MB is 2**20 bytes."""
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

    def memory(self, *, batch: int = 1, moments: int = 1) -> float:
        """Bytes that training needs: weights, gradients, moments of the optimiser (SGD 0 or 1, Adam 2), activations."""
        return self.bytes * (2 + moments) + self.buffer_bytes + self.activation_bytes * batch


def cost(
    model: nn.Module,
    plan: Plan,
    example_inputs: Any,
    capacities: Sequence[float | Fraction] = CAPACITIES,
    *,
    rounding: str = "floor",
) -> list[Cost]:
    """The cost of the sub-model of each capacity, in the order given."""
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
    inputs = at_least_two(example_inputs)
    try:
        macs, operations, activation_bytes = measure(skeleton(model, plan, counts).to("meta"), _on_meta(inputs))
    except Exception:  # a model that looks at its values cannot run without them
        index = Index.of_units(plan, {name: range(count) for name, count in counts.items()})
        macs, operations, activation_bytes = measure(narrow(model, plan, index), inputs)
    return Cost(
        capacity=capacity,
        parameters=parameters,
        bytes=count_bytes(plan, counts, dict(model.named_parameters(remove_duplicate=False))),
        buffer_bytes=count_bytes(plan, counts, dict(model.named_buffers(remove_duplicate=False))),
        macs=macs,
        operations=operations,
        activation_bytes=activation_bytes,
        share=parameters / full if full else 1.0,
    )


def cost_of(make: Callable[[], nn.Module], plan: Plan, example_inputs: Any, *, capacity: float | Fraction) -> Cost:
    """The cost of a sub-model that is no slice of the model; `make` makes its module."""
    made, inputs = make(), at_least_two(example_inputs)
    parameters = sum(tensor.numel() for tensor in made.parameters())
    sizes = [sum(t.numel() * t.element_size() for t in ts) for ts in (made.parameters(), made.buffers())]
    try:
        macs, operations, activation_bytes = measure(made.to("meta"), _on_meta(inputs))
    except Exception:  # a model that looks at its values cannot run without them
        macs, operations, activation_bytes = measure(make(), inputs)
    return Cost(
        capacity=capacity,
        parameters=parameters,
        bytes=sizes[0],
        buffer_bytes=sizes[1],
        macs=macs,
        operations=operations,
        activation_bytes=activation_bytes,
        share=parameters / count_parameters(plan, {}),
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


def measure(model: nn.Module, inputs: Any) -> tuple[int, int, int]:
    """Count (multiply-adds, operations, bytes kept for the backward pass) per sample. The model is left in training
    mode."""
    samples = batch_size(inputs)
    normalised = 0

    def count(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        nonlocal normalised
        normalised += output.numel()

    hooks = [module.register_forward_hook(count) for module in model.modules() if isinstance(module, NORMS)]
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            call(model.eval(), inputs)
    finally:
        for hook in hooks:
            hook.remove()
    flops = counter.get_flop_counts()["Global"]  # two per multiply-add
    macs = sum(flops.values()) // 2
    convolutions = sum(number for operator, number in flops.items() if "convolution" in str(operator)) // 2
    operations = convolutions + 2 * (macs - convolutions) + 4 * normalised
    return macs // samples, operations // samples, saved_bytes(model.train(), inputs) // samples


def saved_bytes(model: nn.Module, inputs: Any) -> int:
    """Bytes that autograd keeps between the forward and the backward pass, without those of the model's own tensors."""
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}  # holds the tensors, so that no storage is freed and its address used again

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with torch.enable_grad(), torch.random.fork_rng(devices=[]), saved_tensors_hooks(keep, lambda tensor: tensor):
        result = call(model, inputs)  # alive until the sum is taken
        total = sum(t.untyped_storage().nbytes() for storage, t in kept.items() if storage not in own)
        del result
    return total


def _on_meta(inputs: Any) -> Any:
    """The inputs without values."""
    return tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, inputs)
