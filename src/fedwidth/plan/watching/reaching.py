"""Which parameters a model computes with where it goes another way by what it reads.

A router sends every sample to a few experts, and a trace on two samples sees the ways of those alone. `telling` finds
the samples that lead elsewhere, with plain passes, of which one costs a fraction of a trace. `led_to` says which groups
lead to what no sample has reached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedwidth.plan.axis import Fixed, groups_of, leaves
from fedwidth.plan.isolation import call, set_mode, untouched
from fedwidth.plan.node import UNREACHED
from fedwidth.plan.plan import Plan
from fedwidth.plan.watching.follow import LEAVING
from fedwidth.plan.watching.recording import tensors_in
from fedwidth.plan.watching.storage import storage_of
from fedwidth.randomness import seed_all

AT_ONCE = 16
LOOKED_THROUGH = 512
"""How many samples are looked through."""
BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def unreached(plan: Plan) -> list[str]:
    """The parameters that no pass of the trace has computed with."""
    return [
        name
        for name, axes in plan.axes.items()
        if name in plan.parameters
        and any(isinstance(leaf, Fixed) and leaf.reason == UNREACHED for axis in axes for leaf in leaves(axis))
    ]


class Pass:
    """What one pass in evaluation mode read."""

    def __init__(self, model: nn.Module, inputs: Any, wanted: Collection[str]) -> None:
        self.reached: set[str] = set()
        """Which of the wanted parameters."""
        self.by_value = False
        """Whether the way may depend on values: the code asked for some, or a shape followed from them."""
        names: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if name in wanted:
                names.setdefault(storage_of(parameter) or id(parameter), []).append(name)
        with untouched(model), torch.no_grad(), _Operators(self, names), _Calls(self):
            set_mode(model, training=False)
            seed_all(0)
            call(model, inputs)


def telling(
    model: nn.Module, batch: Callable[[Sequence[int]], Any], samples: int, wanted: Collection[str]
) -> list[int]:
    """The numbers of samples beyond the first two that reach wanted parameters which no sample before them reached.

    `batch` gives the inputs of the samples of these numbers.
    """
    first = Pass(model, batch(range(min(2, samples))), wanted)
    missing, found = set(wanted) - first.reached, []
    if not first.by_value:
        return []
    for start in range(2, min(samples, LOOKED_THROUGH), AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, samples, LOOKED_THROUGH))
        if not missing:
            break
        if not Pass(model, batch(numbers), missing).reached:
            continue
        for number in numbers:
            if reached := Pass(model, batch([0, number]), missing).reached:
                found.append(number)
                missing -= reached
    return found


def led_to(plan: Plan) -> tuple[list[str], list[str]]:
    """Parameters that were not reached though others like them were, and the groups that lead to those others.

    Alike are parameters whose names differ in numbers alone, such as those of experts. What a narrow model has of these
    groups would reach the first, which are whole, and not fit them.
    """
    missing = set(unreached(plan))
    kinds = {(_unnumbered(name), plan.shapes[name]) for name in missing}
    alike = {name for name in plan.parameters if (_unnumbered(name), plan.shapes[name]) in kinds}
    reached = alike - missing
    axes = [axis for name, own in plan.axes.items() if name in reached for axis in own]
    groups = dict.fromkeys(group for axis in axes for group in groups_of(axis))
    leading = [group for group in groups if any(member not in alike for member, _ in plan.groups[group].members)]
    found = {_unnumbered(name) for name in reached}
    return [name for name in plan.axes if name in missing and _unnumbered(name) in found], leading


def _unnumbered(name: str) -> str:
    return re.sub(r"\d+", "0", name)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees which parameters every operator is given, and whether it makes values into numbers or shapes."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, passed: Pass, names: dict[int, list[str]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.passed, self.names = passed, names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = list(tensors_in([*args, *kwargs.values()]))
        for tensor in given:
            self.passed.reached.update(self.names.get(storage_of(tensor) or id(tensor), ()))
        plain_index = "index" in str(func) and not any(tensor.dtype == torch.bool for tensor in given)
        self.passed.by_value |= bool(BY_VALUE & set(func.tags)) and not plain_index
        return func(*args, **kwargs)


class _Calls(TorchFunctionMode):
    """Sees values that leave PyTorch."""

    def __init__(self, passed: Pass) -> None:
        super().__init__()
        self.passed = passed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.passed.by_value |= getattr(func, "__name__", "") in LEAVING
        return func(*args, **(kwargs or {}))
