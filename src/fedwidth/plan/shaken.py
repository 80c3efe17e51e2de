"""A model's tensors as the self-test takes them: every element moved a little, and reordered by group.

A fresh model's zeros and ones look the same in any order; moved, no two elements are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.errors import PlanError
from fedwidth.plan.axis import groups_of, positions
from fedwidth.plan.plan import Plan

BLOCK, STEP = 1_000_003, 104_729
"""How many numbers are drawn, and by how many the next tensor begins later: two primes."""


class Shaken:
    """Copies of a model's tensors for all passes of a check, made once."""

    def __init__(self, names: Mapping[str, Tensor]) -> None:
        if any(tensor.is_meta for tensor in names.values()):
            raise PlanError("the model holds no values (it is on the meta device), so the plan cannot be checked on it")
        self._names = names
        self._states: dict[torch.dtype | None, dict[str, Tensor]] = {}
        self._last: tuple[Any, dict[str, Tensor]] | None = None
        self.written = {name for name, tensor in names.items() if not isinstance(tensor, nn.Parameter)}
        """Tensors that a forward pass may write into, so that each pass needs its own copy."""

    def state(self, dtype: torch.dtype | None) -> dict[str, Tensor]:
        """The tensors by name, those of floating point in this dtype (or in their own)."""
        if dtype not in self._states:
            copies: dict[int, Tensor] = {}
            for tensor in self._names.values():
                if id(tensor) not in copies:
                    copies[id(tensor)] = _shake(tensor, len(copies), dtype or tensor.dtype)
            self._states = {dtype: {name: copies[id(tensor)] for name, tensor in self._names.items()}}
            self._last = None
        return dict(self._states[dtype])

    def private(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same state, with copies of what a forward pass may write into."""
        return {name: tensor.clone() if name in self.written else tensor for name, tensor in state.items()}

    def find_written(self, state: Mapping[str, Tensor], versions: Mapping[str, int]) -> bool:
        """Whether a pass wrote into a parameter, which is then copied from now on; the state is to be made anew."""
        found = {name for name, tensor in state.items() if tensor._version != versions[name]} - self.written
        if found:
            self.written |= found
            self._states.clear()
        return bool(found)

    def reordered(
        self, plan: Plan, state: dict[str, Tensor], units: Mapping[str, Tensor], *, without: Iterable[str] = ()
    ) -> dict[str, Tensor]:
        """The state with the units of groups in this order, in all their members but those left out."""
        left_out = frozenset(without)
        key = id(state[next(iter(state))]), tuple(units), tuple(map(id, units.values())), left_out
        if self._last is None or self._last[0] != key:
            self._last = key, _reordered(plan, state, units, left_out)
        return dict(self._last[1])


def _reordered(
    plan: Plan, state: Mapping[str, Tensor], units: Mapping[str, Tensor], left_out: frozenset[str]
) -> dict[str, Tensor]:
    orders: dict[Any, Tensor] = {}
    moved: dict[str, Tensor] = {}
    for name, tensor in state.items():
        first = plan.tied.get(name, name)
        if first in moved and (first in left_out) == (name in left_out):
            moved[name] = moved[first]
            continue
        for dim, axis in enumerate(() if name in left_out else plan.axes[name]):
            if any(group in units for group in groups_of(axis)):
                if axis not in orders:
                    orders[axis] = positions(axis, units)
                tensor = _select(tensor, dim, orders[axis].to(tensor.device))
        moved[name] = tensor
    return moved


def _select(tensor: Tensor, dim: int, order: Tensor) -> Tensor:
    """The tensor with one dimension in this order; of the last one a gather is three times as fast on a CPU."""
    if dim == tensor.dim() - 1 and dim:
        return tensor.gather(dim, order.expand(*tensor.shape[:-1], -1))
    return tensor.index_select(dim, order)


def _shake(tensor: Tensor, number: int, dtype: torch.dtype) -> Tensor:
    """A copy of the tensor of this number, each element moved differently; the signs of buffers stay."""
    if not tensor.is_floating_point():
        return tensor.detach()
    value = tensor.detach()
    size = torch.linalg.vector_norm(value, 1, dtype=_norm_dtype(value)) / max(1, value.numel())
    if not torch.isfinite(size):
        finite = torch.isfinite(value)
        size = value[finite].double().abs().sum() / max(1, int(finite.sum()))
        if isinstance(tensor, nn.Parameter):
            value = torch.where(finite, value, 0.0)
    noise = _noise(value.numel(), number).view(value.shape).to(value.device)
    if isinstance(tensor, nn.Parameter) or not size > 0:
        return noise.sub_(0.5).mul_(size if size > 0 else 0.1).add_(value).to(dtype)
    return noise.mul_(0.3).add_(1).mul_(value).to(dtype)


def _norm_dtype(value: Tensor) -> torch.dtype:
    return value.dtype if value.dtype == torch.float64 else torch.float32


def _noise(count: int, number: int) -> Tensor:
    """So many numbers between 0 and 1 that differ, others for every number of a tensor.

    A large tensor repeats the block after a prime number of elements, which no row of it is long: drawing them all
    would take a fifth of a check.
    """
    block, begin = _block(), number * STEP % BLOCK
    pieces = [block[begin : begin + count]]
    while (left := count - sum(map(len, pieces))) > 0:
        pieces.append(block[:left])
    return torch.cat(pieces)


@cache
def _block() -> Tensor:
    return torch.rand(BLOCK, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
