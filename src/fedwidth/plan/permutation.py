"""The permutation law, which a correct plan obeys whatever made it.

Reordering the units of a group in every tensor that has them does not change what the model computes. A group that
lacks a tensor, or holds one too many, breaks it. What holds for each group holds for all of them reordered at once,
each in an order of its own, and two groups that ought to be one do not obey it then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from fedwidth.errors import PlanError
from fedwidth.plan.axis import Axis, Concat, Fixed, Product, Units, groups_of, positions
from fedwidth.plan.isolation import picked, set_mode, untouched
from fedwidth.plan.plan import Plan
from fedwidth.plan.shaken import Shaken
from fedwidth.plan.trace import tensors_of
from fedwidth.plan.watching.recording import tensors_in
from fedwidth.randomness import seed_all

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Largest relative change of the output that rounding explains (some models compute parts in float32)."""


# Not every operator tagged as random is noise: fused attention is.
NOISE = {f"aten::{name}" for name in ("rand", "randn", "rand_like", "randn_like", "normal", "bernoulli")}
NOISE |= {f"aten::{name}" for name in ("uniform_", "normal_", "bernoulli_", "exponential_", "bernoulli_p")}


class PermutationLaw:
    """How much the output changes when the units of groups are reordered, in one of the model's modes."""

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        example_inputs: Any,
        output: Callable[[Any], Any] | None = None,
        *,
        training: bool = False,
        shaken: Shaken | None = None,
    ) -> None:
        self.plan, self.model, self.output, self.training = plan, model, output, training
        self.example_inputs = example_inputs
        self.shaken = shaken or Shaken(tensors_of(model)[0])
        self.shapes: list[torch.Size] = []
        """The shapes of all tensors in the output."""
        try:
            self._begin(torch.float64)
        except (RuntimeError, TypeError):  # a model that insists on its own dtype
            self._begin(None)
        if not all(torch.isfinite(tensor).any() for tensor in self.base):
            raise PlanError("the model's output is not finite, so the plan cannot be checked on these inputs")

    def _begin(self, dtype: torch.dtype | None) -> None:
        """Run the model as it is; with a dtype, its tensors and inputs are cast to it."""
        self.tolerance = TOLERANCE[dtype or torch.float32]
        self.inputs = changed(self.example_inputs, lambda t: t.to(dtype) if dtype and t.is_floating_point() else t)
        while True:
            self.state = self.shaken.state(dtype)
            versions = {name: tensor._version for name, tensor in self.state.items()}
            self.base = self.outputs(self.state)
            if not self.shaken.find_written(self.state, versions):
                break

    def outputs(self, state: dict[str, Tensor]) -> list[Tensor]:
        """The floating-point tensors that the model computes with these parameters and buffers."""
        with untouched(self.model), torch.no_grad(), _Noiseless():  # type: ignore[no-untyped-call]
            set_mode(self.model, training=self.training)
            seed_all(0)
            # A forward pass may write into what it is given.
            inputs = changed(self.inputs, Tensor.clone)
            private = self.shaken.private(state)
            arguments, keywords = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
            result = functional_call(self.model, private, arguments, keywords, tie_weights=False)
            tensors = list(tensors_in(picked(result, self.output)))
        self.shapes = [tensor.shape for tensor in tensors]
        return [tensor.clone() for tensor in tensors if tensor.is_floating_point()]

    def joint_error(self, groups: Sequence[str]) -> float:
        """Relative change of the output when all these groups are reordered at once, each in its own way."""
        units = {name: _reorder(self.plan.groups[name].size, number) for number, name in enumerate(groups)}
        return self._change(self.shaken.reordered(self.plan, self.state, units))

    def error(self, group: str, *, without: Iterable[str] = (), extra: Iterable[tuple[str, int, Axis]] = ()) -> float:
        """Relative change of the output, with members left out or further dimensions reordered like a given axis."""
        units = {group: _reorder(self.plan.groups[group].size)}
        state = self.shaken.reordered(self.plan, self.state, units, without=without)
        for name, dim, axis in extra:
            state[name] = state[name].index_select(dim, positions(axis, units).to(state[name].device))
        return self._change(state)

    def _change(self, state: dict[str, Tensor]) -> float:
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


class _Noiseless(TorchDispatchMode):  # type: ignore[no-untyped-call]
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


@cache
def _reorder(size: int, number: int = 0) -> Tensor:
    """A fixed permutation that moves units, another one for each number."""
    order = torch.randperm(size, generator=torch.Generator().manual_seed(size + 1_000_003 * number))
    return order if not torch.equal(order, torch.arange(size)) else order.roll(1)


def _difference(before: Tensor, after: Tensor) -> float:
    finite = torch.isfinite(before)
    if not torch.equal(finite, torch.isfinite(after)):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = before[finite].abs().max().clamp_min(1e-30)
    return float((before[finite] - after[finite]).abs().max() / scale)


def changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Nested inputs with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: changed(item, change) for key, item in value.items()}
    return type(value)(changed(item, change) for item in value) if type(value) in (list, tuple) else value
