"""The self-test of a plan, independent of the rules that made it.

Permutation law: reordering the units of a group in every tensor that has them does not change what the model computes.
A group that lacks a tensor, or holds one too many, breaks it. All tensors are shaken first, because a fresh model's
zeros and ones look the same in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from fedwidth.errors import PlanError, StateError
from fedwidth.plan.axis import Axis, Concat, Fixed, Product, Units, groups_of, positions
from fedwidth.plan.isolation import call, picked, untouched
from fedwidth.plan.plan import Plan
from fedwidth.plan.recording import tensors_in
from fedwidth.plan.trace import tensors_of

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Largest relative change of the output that rounding explains (some models compute parts in float32)."""


# Not every operator tagged as random is noise: fused attention is.
NOISE = {f"aten::{name}" for name in ("rand", "randn", "rand_like", "randn_like", "normal", "bernoulli")}
NOISE |= {f"aten::{name}" for name in ("uniform_", "normal_", "bernoulli_", "exponential_", "bernoulli_p")}


def check_permutations(
    plan: Plan, model: nn.Module, example_inputs: Any, output: Callable[[Any], Any] | None = None
) -> None:
    """Raise `PlanError` naming the group and the tensor that break the permutation law, or a half model that fails."""
    law = PermutationLaw(plan, model, example_inputs, output)
    for group in plan.groups:
        error = law.error(group)
        if error > law.tolerance:
            raise PlanError(f"group '{group}' breaks the permutation law ({error:.1e}): {law.explain(group)}")
    _check_half(plan, model, example_inputs)


def _check_half(plan: Plan, model: nn.Module, example_inputs: Any) -> None:
    """A model of half the width must run at all."""
    from fedwidth.core.index import Index
    from fedwidth.core.narrow import narrow

    half = Index.of_units(plan, {name: range(count) for name, count in plan.counts(0.5).items()})
    small = narrow(model, plan, half).eval()
    try:
        with untouched(small), torch.no_grad():
            call(small, _changed(example_inputs, Tensor.clone))
    except Exception as error:
        raise PlanError(f"the model fails at half width: {error}") from error


def check_fit(plan: Plan, model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters and buffers by name; `PlanError` unless they are those of the plan."""
    names, _ = tensors_of(model)
    try:
        plan.check_state(names)
    except StateError as error:
        raise PlanError(f"the model does not fit the plan: {error}") from error
    return names


class PermutationLaw:
    """How much the output changes when the units of a group are reordered."""

    def __init__(
        self, plan: Plan, model: nn.Module, example_inputs: Any, output: Callable[[Any], Any] | None = None
    ) -> None:
        self.plan, self.model, self.output = plan, model, output
        names = list(check_fit(plan, model).items())
        if any(tensor.is_meta for _, tensor in names):
            raise PlanError("the model holds no values (it is on the meta device), so the plan cannot be checked on it")
        self.tolerance = TOLERANCE[torch.float64]
        self.inputs = _changed(example_inputs, lambda t: t.double() if t.is_floating_point() else t)
        self.state = _shaken(names, torch.float64)
        try:
            self.base = self.outputs(self.state)
        except (RuntimeError, TypeError):  # a model that insists on its own dtype
            self.tolerance = TOLERANCE[torch.float32]
            self.inputs, self.state = example_inputs, _shaken(names, None)
            self.base = self.outputs(self.state)
        if not all(torch.isfinite(tensor).any() for tensor in self.base):
            raise PlanError("the model's output is not finite, so the plan cannot be checked on these inputs")

    def outputs(self, state: dict[str, Tensor]) -> list[Tensor]:
        """What the model computes with these tensors in evaluation mode."""
        with untouched(self.model), torch.no_grad(), _Still():  # type: ignore[no-untyped-call]
            for module in self.model.modules():
                module.training = False
            # A forward pass may write into what it is given.
            inputs = _changed(self.inputs, Tensor.clone)
            private = {name: tensor.clone() for name, tensor in state.items()}
            arguments, keywords = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
            result = functional_call(self.model, private, arguments, keywords, tie_weights=False)
            counted = picked(result, self.output)
        return [tensor.clone() for tensor in tensors_in(counted) if tensor.is_floating_point()]

    def error(self, group: str, *, without: Iterable[str] = (), extra: Iterable[tuple[str, int, Axis]] = ()) -> float:
        """Relative change of the output, with members left out or further dimensions reordered like a given axis."""
        units = {group: _reorder(self.plan.groups[group].size)}
        left_out = set(without)
        state = dict(self.state)
        changes = [
            (name, dim, axis)
            for name, axes in self.plan.axes.items()
            if name not in left_out
            for dim, axis in enumerate(axes)
            if group in groups_of(axis)
        ]
        for name, dim, axis in [*changes, *extra]:
            state[name] = state[name].index_select(dim, positions(axis, units).to(state[name].device))
        pairs = zip(self.base, self.outputs(state), strict=True)
        return max((_difference(mine, its) for mine, its in pairs), default=0.0)

    def explain(self, group: str) -> str:
        """Which tensor makes the group break the law."""
        for name, dim, axis in self._candidates(group):
            if self.error(group, extra=[(name, dim, axis)]) <= self.tolerance:
                return f"tensor '{name}' (dimension {dim}) is missing from it"
        members = dict.fromkeys(name for name, _ in self.plan.groups[group].members)
        for name in members:
            twins = {n for n in self.plan.axes if self.plan.tied.get(n, n) == self.plan.tied.get(name, name)}
            if self.error(group, without=twins) <= self.tolerance:
                return f"tensor '{name}' does not belong to it"
        return f"no single tensor explains it; its members are {', '.join(members)}"

    def _candidates(self, group: str) -> Iterator[tuple[str, int, Axis]]:
        """Dimensions outside the group, each read in the ways in which it could hold the group's units."""
        units = Units(group, self.plan.groups[group].size)
        inside = {axis for axes in self.plan.axes.values() for axis in axes if group in groups_of(axis)}
        for name, axes in self.plan.axes.items():
            for dim, axis in enumerate(axes):
                if group in groups_of(axis) or name in self.plan.tied:
                    continue
                times, rest = divmod(axis.size, units.size)
                readings = {_reread(axis, units), *(like for like in inside if like.size == axis.size)}
                if not rest and times > 1:
                    readings |= {Product((Fixed(times, ""), units)), Product((units, Fixed(times, "")))}
                yield from ((name, dim, reading) for reading in readings if group in groups_of(reading))


def _reread(axis: Axis, units: Units) -> Axis:
    """The axis with the group in place of every fixed part of its size."""
    match axis:
        case Fixed(size, _):
            return units if size == units.size else axis
        case Units():
            return axis
        case Product(parts):
            return Product(tuple(_reread(part, units) for part in parts))
        case Concat(parts):
            return Concat(tuple(_reread(part, units) for part in parts))


class _Still(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Noise would hide the law: random tensors hold one value."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.native_dropout.default:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        out = func(*args, **(kwargs or {}))
        if func._schema.name in NOISE:
            for tensor in tensors_in(out):
                tensor.fill_(1)
        return out


def _reorder(size: int) -> Tensor:
    """A fixed permutation that moves units."""
    order = torch.randperm(size, generator=torch.Generator().manual_seed(size))
    return order if not torch.equal(order, torch.arange(size)) else order.roll(1)


def _difference(before: Tensor, after: Tensor) -> float:
    finite = torch.isfinite(before)
    if not torch.equal(finite, torch.isfinite(after)):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = before[finite].abs().max().clamp_min(1e-30)
    return float((before[finite] - after[finite]).abs().max() / scale)


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Nested inputs with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _changed(item, change) for key, item in value.items()}
    return type(value)(_changed(item, change) for item in value) if type(value) in (list, tuple) else value


def _shaken(names: list[tuple[str, Tensor]], dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Copies of floating-point tensors, each element moved a little and differently; signs of buffers stay."""
    generator = torch.Generator().manual_seed(0)
    copies: dict[int, Tensor] = {}
    for _, tensor in names:
        if id(tensor) in copies:
            continue
        if not tensor.is_floating_point():
            copies[id(tensor)] = tensor.detach()
            continue
        noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)
        value = tensor.detach().double()
        if isinstance(tensor, nn.Parameter):
            value = torch.where(torch.isfinite(value), value, 0.0)
        size = value[torch.isfinite(value)].abs().mean() if value.numel() else value.sum()
        if isinstance(tensor, nn.Parameter) or not size > 0:
            value = value + (noise - 0.5) * (size if size > 0 else 0.1)
        else:
            value = value * (1 + 0.3 * noise)
        copies[id(tensor)] = value.to(dtype or tensor.dtype)
    return {name: copies[id(tensor)] for name, tensor in names}
