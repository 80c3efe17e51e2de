"""Which parameters a model computes with where it goes another way by what it reads.

A router sends every sample to a few experts, and a trace on two samples sees the ways of those alone. `telling` finds
the samples that lead elsewhere, with plain passes, of which one costs a fraction of a trace. `likely` says what else
samples may reach, `parting` where their ways are known to part, and `leading` which groups lead there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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


class WatchedPass:
    """What one pass in evaluation mode read."""

    def __init__(self, model: nn.Module, inputs: Any, wanted: Collection[str]) -> None:
        self.reached: set[str] = set()
        """Which of the wanted parameters."""
        self.by_value = False
        """Whether the way may depend on values: the code asked for some, or a shape followed from them."""
        self.failed = False
        """Whether the model fails on these samples: it is not trained on them yet, and may do anything."""
        names: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if name in wanted:
                names.setdefault(storage_of(parameter) or id(parameter), []).append(name)
        with untouched(model), torch.no_grad(), _Operators(self, names), _Calls(self):
            set_mode(model, training=False)
            seed_all(0)
            try:
                call(model, inputs)
            except Exception:
                self.failed, self.reached = True, set()


def telling(
    model: nn.Module, batch: Callable[[Sequence[int]], Any], samples: int, wanted: Collection[str]
) -> list[int]:
    """The numbers of samples beyond the first two that reach wanted parameters which no sample before them reached.

    `batch` gives the inputs of the samples of these numbers.
    """
    first = WatchedPass(model, batch(range(min(2, samples))), wanted)
    missing, found = set(wanted) - first.reached, []
    if not first.by_value:
        return []
    for numbers in _batches(2, samples):
        if not missing:
            break
        together = WatchedPass(model, batch(numbers), missing)
        if not together.reached and not together.failed:
            continue
        for number in numbers:
            if reached := WatchedPass(model, batch([0, number]), missing).reached:
                found.append(number)
                missing -= reached
    return found


def likely(plan: Plan) -> dict[str, list[str]]:
    """Of every parameter that was not reached the others like it that were, where there are some.

    Alike are parameters of one shape whose names differ in numbers alone, such as those of experts.
    """
    missing, kinds = unreached(plan), dict[object, list[str]]()
    for name in plan.axes:
        if name in plan.parameters and name not in missing:
            kinds.setdefault((_unnumbered(name), plan.shapes[name]), []).append(name)
    found = {name: kinds.get((_unnumbered(name), plan.shapes[name]), []) for name in missing}
    return {name: like for name, like in found.items() if like}


def leading(plan: Plan, like: Mapping[str, Collection[str]]) -> list[str]:
    """The groups that lead to parameters like those that were not reached: those of theirs that others have, too.

    What a narrow model has of these groups would reach those that were not, which are whole, and not fit them.
    """
    names = {name for others in like.values() for name in others}
    axes = [axis for name in plan.axes if name in names for axis in plan.axes[name]]
    groups = dict.fromkeys(group for axis in axes for group in groups_of(axis))
    return [group for group in groups if any(member not in names for member, _ in plan.groups[group].members)]


def parting(
    model: nn.Module, batch: Callable[[Sequence[int]], Any], samples: int, names: Collection[str]
) -> tuple[set[str], int]:
    """Those of these parameters that some samples reach and others do not, and how many samples were looked at.

    The first samples are looked at one by one, each of them twice in a batch, as models may want two. Batches of
    different sizes are not compared: a model may go another way for the size.
    """
    reached, looked = defaultdict[int, list[set[str]]](list), 0
    one_by_one = [[number, number] for number in range(min(samples, AT_ONCE))]
    for numbers in [*one_by_one, *_batches(AT_ONCE, samples)]:
        if not (passed := WatchedPass(model, batch(numbers), names)).failed:
            reached[len(numbers)].append(passed.reached)
            looked += len(set(numbers))
    parted = {name for name in names for alike in reached.values() if len({name in each for each in alike}) > 1}
    return parted, looked


def _batches(start: int, samples: int) -> Iterator[range]:
    end = min(samples, LOOKED_THROUGH)
    return (range(first, min(first + AT_ONCE, end)) for first in range(start, end, AT_ONCE))


def _unnumbered(name: str) -> str:
    return re.sub(r"\d+", "0", name)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees which parameters every operator is given, and whether it makes values into numbers or shapes."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, passed: WatchedPass, names: dict[int, list[str]]) -> None:
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

    def __init__(self, passed: WatchedPass) -> None:
        super().__init__()
        self.passed = passed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.passed.by_value |= getattr(func, "__name__", "") in LEAVING
        return func(*args, **(kwargs or {}))
