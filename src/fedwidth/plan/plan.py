"""The plan: which axes of which tensors share a width. It knows nothing of rounds or clients.

Worked example. In `Linear(784, 128) -> ReLU -> Linear(128, 10)` the hidden units are one width group of size 128 with
three members: rows of the first weight, entries of the first bias, columns of the second weight. Keeping units {0, 5}
keeps rows 0 and 5 there, entries 0 and 5, columns 0 and 5: a working 784-2-10 network. Inputs and outputs stay whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.errors import CapacityError, OptionError, PlanError, StateError
from fedwidth.plan.attributes import Attribute
from fedwidth.plan.axis import Axis, Fixed, groups_of, kept, leaves

ROUNDINGS = ("floor", "ceil")


@dataclass(frozen=True)
class Group:
    """One width group: `size` units that every member keeps or drops together."""

    name: str
    size: int
    members: tuple[tuple[str, int], ...]
    """(tensor, dimension) pairs that contain the group, in the order of the model's state."""


@dataclass(frozen=True)
class Coupling:
    """Group `whole` must keep exactly `factor` times as many units as group `part`.

    `nn.MultiheadAttention` needs this: it takes the head size from embedding width / number of heads.
    """

    whole: str
    factor: int
    part: str


@dataclass(frozen=True, eq=False)
class Plan:
    """Which axes of which tensors share a width; made by `fedwidth.trace`."""

    axes: Mapping[str, tuple[Axis, ...]]
    """For every parameter and buffer (tied names too) one axis per dimension."""
    groups: Mapping[str, Group]
    tied: Mapping[str, str] = field(default_factory=dict)
    """A second name of a shared tensor -> its first name."""
    parameters: frozenset[str] = frozenset()
    """Names that are parameters; the others are buffers."""
    optional: frozenset[str] = frozenset()
    """Buffers that `state_dict()` leaves out; a state may lack them."""
    attributes: tuple[Attribute, ...] = ()
    """Module attributes (head counts, view sizes) that a narrow module must change."""
    couplings: tuple[Coupling, ...] = ()
    label_axes: tuple[tuple[str, int], ...] = ()
    """(tensor, dimension) pairs that run over the model's output classes."""
    unknown_operators: Mapping[str, int] = field(default_factory=dict)
    """Operators without a rule: how often each was met. What they touched is frozen."""

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Full shape of every tensor."""
        return {name: tuple(axis.size for axis in axes) for name, axes in self.axes.items()}

    def counts(self, capacity: float | Fraction, rounding: str = "floor") -> dict[str, int]:
        """How many units of each group a device of this capacity keeps: floor(capacity * size), at least one.

        Groups tied by a coupling are rounded together, so that e.g. heads * head size == embedding width holds.
        """
        check_capacity(capacity)
        if rounding not in ROUNDINGS:
            raise OptionError(f"rounding must be 'floor' or 'ceil', not {rounding!r}")
        counts = {name: count_units(group.size, capacity, rounding) for name, group in self.groups.items()}
        for whole in dict.fromkeys(coupling.whole for coupling in self.couplings):
            parts = [coupling for coupling in self.couplings if coupling.whole == whole]
            step = math.lcm(*(coupling.factor for coupling in parts))
            counts[whole] = step * count_units(self.groups[whole].size // step, capacity, rounding)
            for coupling in parts:
                counts[coupling.part] = counts[whole] // coupling.factor
        return counts

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Raise `StateError` unless the state has the plan's tensors, all of them, in their full shapes."""
        self.check_shapes(state, self.shapes, "the plan")

    def check_shapes(self, state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], owner: str) -> None:
        """Raise `StateError` naming the first tensor of `state` that does not have the shape `owner` expects."""
        for name in state:
            if name not in shapes:
                raise StateError(f"the state holds '{name}', which {owner} does not know; was another model traced?")
        for name, shape in shapes.items():
            if name not in state:
                if name in self.optional or self.tied.get(name) in state:
                    continue
                raise StateError(f"the state lacks '{name}' {shape}, which {owner} expects")
            if tuple(state[name].shape) != shape:
                raise StateError(f"'{name}' has shape {tuple(state[name].shape)}, but {owner} expects {shape}")

    def narrow_shapes(self, counts: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor when group g keeps counts[g] units."""
        return {name: tuple(kept(axis, counts) for axis in axes) for name, axes in self.axes.items()}

    def frozen(self) -> list[tuple[str, int, str]]:
        """(tensor, dimension, reason) of every dimension no part of which is sliced."""
        return [
            (name, dim, next((leaf.reason for leaf in leaves(axis) if isinstance(leaf, Fixed)), ""))
            for name, axes in self.axes.items()
            for dim, axis in enumerate(axes)
            if not groups_of(axis)
        ]

    def check(self, model: nn.Module, example_inputs: Any, *, output: Callable[[Any], Any] | None = None) -> None:
        """Permutation self-test: permuting the units of any group everywhere must not change the output.

        Raises `PlanError` naming the group and the tensor that breaks the law. `output` picks the part of the model's
        output that counts, as in `trace`.
        """
        from fedwidth.plan.check import check_permutations

        check_permutations(self, model, example_inputs, output)

    def __str__(self) -> str:
        from fedwidth.plan.table import plan_table

        return plan_table(self)


def check_capacity(capacity: float | Fraction) -> None:
    """Raise `CapacityError` unless 0 < capacity <= 1."""
    if isinstance(capacity, bool) or not isinstance(capacity, (int, float, Fraction)) or not 0 < capacity <= 1:
        raise CapacityError(f"capacity must be a number above 0 and at most 1, not {capacity!r}")


def count_units(size: int, capacity: float | Fraction, rounding: str) -> int:
    """floor or ceil of capacity * size, at least one; forgiving of float noise (0.29 * 100 is 29 units).

    >>> count_units(10, 0.25, "floor"), count_units(10, 0.25, "ceil"), count_units(3, 1 / 16, "floor")
    (2, 3, 1)
    """
    exact = float(capacity * size)
    units = math.floor(exact + 1e-9) if rounding == "floor" else math.ceil(exact - 1e-9)
    return max(1, min(size, units))


def check_units(group: Group, units: Iterable[int] | Tensor) -> Tensor:
    """`units` as a sorted LongTensor; `CapacityError` or `PlanError` if empty, repeated or out of range."""
    chosen = torch.as_tensor(units if isinstance(units, Tensor) else list(units), dtype=torch.long).flatten()
    if not len(chosen):
        raise CapacityError(f"group '{group.name}' keeps no unit; at least one of its {group.size} must stay")
    chosen = chosen.sort().values
    if chosen[0] < 0 or chosen[-1] >= group.size:
        raise PlanError(f"group '{group.name}' has units 0 to {group.size - 1}, not {chosen[0]} to {chosen[-1]}")
    if (chosen[1:] == chosen[:-1]).any():
        raise PlanError(f"group '{group.name}' was given a unit twice")
    return chosen
