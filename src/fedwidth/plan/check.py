"""The self-test of a plan: the permutation law, and a model of half the width that runs, in both modes.

The tests know nothing of the rules that made the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.errors import PlanError, StateError
from fedwidth.plan.isolation import at_least_two, call, picked, set_mode, untouched
from fedwidth.plan.permutation import PermutationLaw, changed
from fedwidth.plan.plan import Plan
from fedwidth.plan.shaken import Shaken
from fedwidth.plan.trace import tensors_of
from fedwidth.plan.watching.recording import tensors_in
from fedwidth.randomness import seed_all

FEW = 6
"""A group of fewer units has so few orders that two groups may come to move alike by chance."""


def check_plan_on(
    plan: Plan, model: nn.Module, example_inputs: Any, output: Callable[[Any], Any] | None = None
) -> None:
    """Raise `PlanError` naming the group and tensor that break the permutation law, or what fails at half width."""
    shaken, small = Shaken(check_fit(plan, model)), _half(plan, model)
    for training in (False, True) if plan.training_passes else (False,):
        inputs = at_least_two(example_inputs) if training else example_inputs
        law = PermutationLaw(plan, model, inputs, output, training=training, shaken=shaken)
        mode = " in training mode" if training else ""
        for moved in _moves(plan):
            if law.joint_error(moved) > law.tolerance:
                _blame(law, moved, mode)
        _check_half(law, small, mode)


def _moves(plan: Plan) -> Iterator[list[str]]:
    """Sets of groups to reorder at once, each group in an order of its own: nearly always one set, of all of them.

    Groups with few orders are numbered, and the n-th set has those with the n-th bit in their number: no two of them
    are always moved together, so that two groups that ought to be one are told apart.
    """
    few = [name for name, group in plan.groups.items() if group.size < FEW]
    yield [name for name in plan.groups if name not in few or (few.index(name) + 1) & 1]
    for bit in range(1, len(few).bit_length()):
        yield [name for number, name in enumerate(few, 1) if number >> bit & 1]


def _blame(law: PermutationLaw, moved: list[str], mode: str) -> None:
    """Raise `PlanError` for the group that breaks the law; none does where rounding errors only added up."""
    for group in moved:
        error = law.error(group)
        if error > law.tolerance:
            raise PlanError(f"group '{group}' breaks the permutation law{mode} ({error:.1e}): {law.explain(group)}")


def _half(plan: Plan, model: nn.Module) -> nn.Module:
    """The model at half width."""
    from fedwidth.core.index import Index
    from fedwidth.core.narrow import narrow

    return narrow(model, plan, Index.of_units(plan, {name: range(n) for name, n in plan.counts(0.5).items()}))


def _check_half(law: PermutationLaw, small: nn.Module, mode: str) -> None:
    """The model at half width must run, and give outputs of the same shapes."""
    plan, inputs = law.plan, law.example_inputs
    for seed in range(plan.training_passes if law.training else 1):
        try:
            with untouched(small), torch.no_grad():
                set_mode(small, training=law.training)
                seed_all(seed)
                result = call(small, changed(inputs, Tensor.clone))
        except Exception as error:
            raise PlanError(f"the model fails at half width{mode}: {error}") from error
        for number, (shape, tensor) in enumerate(zip(law.shapes, tensors_in(picked(result, law.output)), strict=False)):
            if tensor.shape != shape:
                raise PlanError(
                    f"output {number} has shape {list(tensor.shape)} at half width{mode}, and {list(shape)} at full"
                    " width: a number that the plan does not follow, or follows wrongly, depends on the width"
                )


def check_fit(plan: Plan, model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters and buffers by name; `PlanError` unless they are those of the plan."""
    names, _ = tensors_of(model)
    try:
        plan.check_state(names)
    except StateError as error:
        raise PlanError(f"the model does not fit the plan: {error}") from error
    return names
