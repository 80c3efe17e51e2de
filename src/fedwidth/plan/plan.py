"""The plan: which axes of which tensors share a width. It knows nothing of rounds or clients.

Worked example. In `Linear(784, 128) -> ReLU -> Linear(128, 10)` the hidden units are one width group of size 128 with
three members: rows of the first weight, entries of the first bias, columns of the second weight. Keeping units {0, 5}
keeps rows 0 and 5 there, entries 0 and 5, columns 0 and 5: a working 784-2-10 network. Inputs and outputs stay whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.errors import PlanError, StateError
from fedwidth.plan.adapters import Adapter
from fedwidth.plan.attributes import Attribute
from fedwidth.plan.axis import Axis, Fixed, groups_of, kept, leaves
from fedwidth.plan.units import check_capacity, check_rounding, count_units
from fedwidth.plan.work import Work


@dataclass(frozen=True)
class Group:
    """One width group: `size` units that every member keeps or drops together."""

    name: str
    size: int
    members: tuple[tuple[str, int], ...]
    """(tensor, dimension) pairs that contain the group, in the order of the model's state."""
    multiple: int = 1
    """How many units are kept is a multiple of this, because an operator takes no other numbers."""

    def count(self, capacity: float | Fraction, rounding: str = "floor", step: int = 1) -> int:
        """How many units a device of this capacity keeps: a multiple of `step`, too."""
        step = math.lcm(step, self.multiple)
        return step * count_units(self.size // step, capacity, rounding)


@dataclass(frozen=True)
class Coupling:
    """Group `whole` must keep exactly `factor` times as many units as group `part`.

    `nn.MultiheadAttention` needs this: it takes the head size from embedding width / number of heads.
    """

    whole: str
    factor: int | Fraction
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
    """Buffers that `state_dict()` leaves out, and those that hold a root of a width; a state may lack them."""
    attributes: tuple[Attribute, ...] = ()
    """Numbers held by modules (head counts, sizes of views, roots of a width) that a narrow module must change."""
    left_alone: tuple[str, ...] = ()
    """Numbers that are the root of a width by their value but not known to come from it; a narrow module keeps them."""
    couplings: tuple[Coupling, ...] = ()
    label_axes: tuple[tuple[str, int], ...] = ()
    """(tensor, dimension) pairs that run over the model's output classes."""
    layers: Mapping[str, int] = field(default_factory=dict)
    """The weights of plain linear and convolution layers, in the model's order, and how many groups each has: another
    layer that computes the same may take such a layer's place."""
    unknown_operators: Mapping[str, int] = field(default_factory=dict)
    """Operators without a rule: how often each was met. What they touched is frozen."""
    looks_at_values: bool = False
    """Whether the model asked for values, as a branch or loop that depends on them does: the plan follows the path
    that the example inputs took."""
    training_passes: int = 1
    """How often the model was run in training mode: several times where it draws at random which way it goes."""
    work: Work = field(default_factory=Work)
    """What a pass multiplies and keeps, at any width."""
    adapters: tuple[Adapter, ...] = ()
    """The low-rank adapters of the model. What a sub-model does not hold of them is folded into its weights."""
    untrained: frozenset[str] = frozenset()
    """In a model with adapters, the parameters that are never trained: clients send none of them back."""
    profiles: Mapping[float, Mapping[str, float]] = field(default_factory=dict)
    """The share of each group by capacity, for capacities whose groups are not all of one width; what a profile does
    not name keeps the capacity's own share."""
    before: Plan | None = None
    """The plan that the model had before a run narrowed it or gave it adapters, where it did."""

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Full shape of every tensor."""
        return {name: tuple(axis.size for axis in axes) for name, axes in self.axes.items()}

    @cached_property
    def rank_groups(self) -> frozenset[str]:
        """The width groups that are ranks of adapters."""
        return frozenset(group for adapter in self.adapters for group in groups_of(self.axes[adapter.down][0]))

    @cached_property
    def scale_buffers(self) -> frozenset[str]:
        """Buffers that hold a root of a width: constants of a module of that width, whatever a state says."""
        return frozenset(str(attribute) for attribute in self.attributes if attribute.buffer)

    @cached_property
    def numbered_axes(self) -> tuple[tuple[Axis, ...], dict[str, tuple[int, ...]]]:
        """The distinct axes, and for every tensor the numbers of its own: many tensors share a few axes."""
        numbers: dict[Axis, int] = {}
        by_tensor = {n: tuple(numbers.setdefault(a, len(numbers)) for a in axes) for n, axes in self.axes.items()}
        return tuple(numbers), by_tensor

    def counts(
        self,
        capacity: float | Fraction,
        rounding: str = "floor",
        *,
        shares: Mapping[str, float | Fraction] | None = None,
    ) -> dict[str, int]:
        """How many units of each group a device of this capacity keeps: floor(capacity * size), at least one.

        Groups tied by a coupling are rounded together, so that e.g. heads * head size == embedding width holds, and a
        group of which only multiples can be kept is rounded to one. Where the capacity has a profile (or `shares` are
        given), each group keeps its own share; of groups tied by a coupling, the share of the whole decides.
        """
        check_capacity(capacity)
        check_rounding(rounding)
        if shares is not None:
            return self._count(capacity, rounding, shares)
        key = (capacity, isinstance(capacity, Fraction), rounding)  # a float's noise is forgiven, a fraction has none
        if key not in self._counts:
            self._counts[key] = self._count(capacity, rounding, self.profiles.get(float(capacity), {}))
        return dict(self._counts[key])

    @cached_property
    def _counts(self) -> dict[tuple[float | Fraction, bool, str], dict[str, int]]:
        """What was counted so far: every round asks for the same few capacities."""
        return {}

    def _count(self, capacity: float | Fraction, rounding: str, own: Mapping[str, float | Fraction]) -> dict[str, int]:
        """How many units each group keeps at its own share, or at the capacity where it has none."""
        counts = {name: group.count(own.get(name, capacity), rounding) for name, group in self.groups.items()}
        for whole in dict.fromkeys(coupling.whole for coupling in self.couplings):
            parts = [coupling for coupling in self.couplings if coupling.whole == whole]
            step = math.lcm(
                *((coupling.factor * Fraction(self.groups[coupling.part].multiple)).numerator for coupling in parts)
            )
            counts[whole] = self.groups[whole].count(own.get(whole, capacity), rounding, step)
            for coupling in parts:
                counts[coupling.part] = int(counts[whole] / Fraction(coupling.factor))
        return counts

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Raise `StateError` unless the state has the plan's tensors, all of them, in their full shapes."""
        self.check_shapes(state, self.shapes, "the plan")
        self.check_ties(state)

    def check_shapes(
        self,
        state: Mapping[str, Tensor],
        shapes: Mapping[str, tuple[int, ...]],
        owner: str,
        *,
        may_lack: Collection[str] = (),
    ) -> None:
        """Raise `StateError` naming the first tensor of `state` that does not have the shape `owner` expects."""
        if not isinstance(state, Mapping):
            raise StateError(f"a state maps names to tensors; this is a {type(state).__name__}")
        for name in state:
            if name not in shapes:
                raise StateError(f"the state holds '{name}', which {owner} does not know; was another model traced?")
        for name, shape in shapes.items():
            if name not in state:
                if name in self.optional or self.tied.get(name) in state or name in may_lack:
                    continue
                raise StateError(f"the state lacks '{name}' {shape}, which {owner} expects")
            tensor = state[name]
            if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_quantized:
                raise StateError(f"'{name}' must be a dense tensor, not {_kind(tensor)}")
            if tensor.shape != shape:
                raise StateError(f"'{name}' has shape {tuple(tensor.shape)}, but {owner} expects {shape}")

    def check_ties(self, state: Mapping[str, Tensor]) -> None:
        """Raise `StateError` if two names of one tensor of the model hold different values."""
        for name, first in self.tied.items():
            if name not in state or first not in state or state[name] is state[first]:
                continue
            one, two = state[first], state[name]
            if one.is_meta or two.is_meta or one.data_ptr() == two.data_ptr():
                continue
            if one.dtype != two.dtype or one.device != two.device or not torch.equal(one, two):
                raise StateError(f"'{first}' and '{name}' are one tensor of the model, but their values differ")

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
        """Self-test: reordering the units of any group everywhere must not change the output, in either mode.

        A model of half the width must run, and give outputs of the same shapes. Raises `PlanError` naming the group
        and the tensor that breaks the law. `output` picks the part of the model's output that counts, as in `trace`.
        """
        from fedwidth.plan.check import check_plan_on

        check_plan_on(self, model, example_inputs, output)

    def __str__(self) -> str:
        from fedwidth.plan.table import plan_table

        return plan_table(self)


def check_plan(plan: Plan) -> None:
    """Raise `PlanError` unless it is a plan (not the model, say)."""
    if not isinstance(plan, Plan):
        raise PlanError(f"expected a plan from fedwidth.trace, not a {type(plan).__name__}")


def _kind(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return "a quantised one" if value.is_quantized else f"one of layout {value.layout}"
