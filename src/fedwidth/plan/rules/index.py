"""Rules of operators that read or write positions given by other tensors: indices, masks, scatters."""

# ruff: noqa: ARG001 — all rules share one signature

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedwidth.plan.node import Node, find, freeze, product
from fedwidth.plan.restructure import unify
from fedwidth.plan.rules.registry import broadcast, elementwise, freeze_all, rule, unknown, use_all
from fedwidth.plan.watching.recording import Recording, tensors_in

PICKED, WRITTEN = "positions picked by an index", "positions written by an index"


@dataclass(frozen=True)
class _Indexed:
    """The dimensions of a tensor in an index expression: before the indexed ones, and behind them."""

    before: list[Node]
    behind: list[Node]
    integers: list[Tensor]
    masks: bool


def _indexed(recording: Recording, source: Tensor, indices: Sequence[Any], reason: str) -> _Indexed:
    """Freeze the dimensions that are indexed; a mask covers as many as it has, and is as long as those."""
    axes, dim = recording.axes(source), 0
    picked: list[int] = []
    integers: list[Tensor] = []
    masks = False
    for places in indices:
        if places is None:
            dim += 1
        elif places.dtype in (torch.bool, torch.uint8):
            masks = True
            for axis, mine in zip(axes[dim:], recording.axes(places), strict=False):
                unify(axis, mine, "an index")
            picked += range(dim, dim + places.dim())
            dim += places.dim()
        else:
            integers.append(places)
            picked.append(dim)
            dim += 1
    freeze_all((axes[place] for place in picked), reason)
    use_all(*axes)
    adjacent = picked == list(range(picked[0], picked[-1] + 1))
    start = picked[0] if adjacent else 0
    behind = [axes[place] for place in range(start, len(axes)) if place not in picked]
    return _Indexed(axes[:start], behind, integers, masks)


@rule("index", "_unsafe_index")
def index(recording: Recording, operator: Any, out: Tensor, source: Tensor, indices: Sequence[Any]) -> None:
    """Positions picked by integers or masks."""
    found = _indexed(recording, source, indices, PICKED)
    start = len(found.before)
    shape = out.shape[start : out.dim() - len(found.behind)]
    middle = broadcast(recording, found.integers, shape, operator)
    if found.masks:
        freeze_all(middle, PICKED)
        middle = [Node(size, PICKED) for size in shape]
    recording.put(out, [*found.before, *middle, *found.behind])


@rule("index_put", "index_put_", "_unsafe_index_put", "_index_put_impl_")
def index_put(
    recording: Recording, operator: Any, out: Tensor, source: Tensor, indices: Sequence[Any], values: Tensor, *_: Any
) -> None:
    """Values written to positions given by integers or masks."""
    found = _indexed(recording, source, indices, WRITTEN)
    # The dimensions of the values from the last to the first: those behind the index, the picked ones, those before.
    mine = recording.axes(values)[::-1]
    picked = max([tensor.dim() for tensor in found.integers] + [1] * found.masks)
    last = len(found.behind)
    for axis, its in [*zip(mine, found.behind[::-1]), *zip(mine[last + picked :], found.before[::-1])]:  # noqa: B905
        if find(axis).size == find(its).size:
            unify(axis, its, str(operator))
    freeze_all(mine[last : last + picked], WRITTEN)
    if not recording.knows(out):
        recording.put(out, recording.axes(source))


@rule("index_select")
def index_select(recording: Recording, operator: Any, out: Tensor, source: Tensor, dim: int, places: Tensor) -> None:
    """Positions of one dimension picked by an integer tensor."""
    axes = list(recording.axes(source))
    freeze(axes[dim], PICKED)
    axes[dim] = recording.axes(places)[0] if places.dim() else Node(1)
    recording.put(out, axes)


@rule("index_add", "index_add_", "index_copy", "index_copy_", "index_reduce", "index_reduce_")
def index_add(
    recording: Recording,
    operator: Any,
    out: Tensor,
    target: Tensor,
    dim: int,
    places: Tensor,
    source: Tensor,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Slices of one tensor added to, or written over, slices of another."""
    axes, its = recording.axes(target), recording.axes(source)
    freeze_all((axes[dim], *recording.axes(places)), WRITTEN)
    for place, (mine, other) in enumerate(zip(axes, its, strict=True)):
        if place == dim % len(axes):
            freeze(other, WRITTEN)
        else:
            unify(mine, other, str(operator))
    use_all(*axes)
    if not recording.knows(out):
        recording.put(out, axes)


@rule("index_fill", "index_fill_")
def index_fill(recording: Recording, operator: Any, out: Tensor, target: Tensor, dim: int, *args: Any) -> None:
    """A value written to some slices."""
    freeze(recording.axes(target)[dim], WRITTEN)
    if not recording.knows(out):
        recording.put(out, recording.axes(target))


@rule("gather")
def gather(
    recording: Recording, operator: Any, out: Tensor, source: Tensor, dim: int, places: Tensor, **kwargs: Any
) -> None:
    """Along one dimension, positions picked by an integer tensor of the result's shape."""
    axes, result = recording.axes(source), recording.axes(places)
    dim %= max(source.dim(), 1)
    for place, (mine, its) in enumerate(zip(axes, result, strict=True)):
        if place != dim and find(mine).size == find(its).size:
            unify(mine, its, str(operator))
        else:
            freeze(mine, PICKED)
    recording.put(out, result)


@rule("scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_")
def scatter(
    recording: Recording, operator: Any, out: Tensor, target: Tensor, dim: int, places: Tensor, *args: Any, **_: Any
) -> None:
    """Along one dimension, values written to positions given by an integer tensor."""
    axes = recording.axes(target)
    dim %= max(target.dim(), 1)
    freeze_all(axes[dim : dim + 1], WRITTEN)
    for tensor in (places, *tensors_in(args)):
        for place, (mine, its) in enumerate(zip(axes, recording.axes(tensor), strict=False)):
            if place != dim and find(mine).size == find(its).size:
                unify(mine, its, str(operator))
            else:
                freeze_all((mine, its), WRITTEN)
    use_all(*axes)
    if not recording.knows(out):
        recording.put(out, axes)


@rule("masked_scatter", "masked_scatter_")
def masked_scatter(
    recording: Recording, operator: Any, out: Tensor, target: Tensor, mask: Tensor, source: Tensor
) -> None:
    """Elements of the source, in their order, written where a mask says so; whole rows where it is expanded."""
    axes, its = recording.axes(target), list(recording.axes(source))
    rows = list(axes)
    while rows and its and _repeats(mask, len(rows) - target.dim()) and find(rows[-1]).size == find(its[-1]).size:
        unify(rows.pop(), its.pop(), str(operator))
    freeze_all((*rows, *its), WRITTEN)
    broadcast(recording, [target, mask], target.shape, operator)
    if not recording.knows(out):
        recording.put(out, axes)


def _repeats(mask: Tensor, behind: int) -> bool:
    """Whether a mask was expanded along the dimension so many (or 0) from the end."""
    dim = mask.dim() - 1 + behind
    return dim < 0 or mask.shape[dim] == 1 or mask.stride(dim) == 0


@rule("nonzero", "masked_select", "bincount", "histc", "unique_dim", "_unique", "_unique2", "unique_consecutive")
def collected(recording: Recording, operator: Any, out: Any, *args: Any, **kwargs: Any) -> None:
    """A list as long as the values say, in the order of the positions."""
    for tensor in tensors_in([*args, *kwargs.values()]):
        freeze_all(recording.axes(tensor), "collected in the order of the positions")
    for tensor in tensors_in(out):
        recording.put_fixed(tensor, "as many as the values say")


@rule("repeat_interleave")
def repeat_interleave(
    recording: Recording, operator: Any, out: Tensor, source: Tensor, repeats: Any = None, *args: Any, **kwargs: Any
) -> None:
    """Repeat every unit of one dimension, each as often as a tensor says or all equally often."""
    dim = args[0] if args else kwargs.get("dim")
    axes = list(recording.axes(source))
    if not isinstance(repeats, (int, Tensor)):  # how often to repeat each position: a list of positions
        freeze_all(axes, PICKED)
        return recording.put_fixed(out, PICKED)
    if dim is None:
        return unknown(recording, operator, out, source, repeats)
    if isinstance(repeats, int):
        axes[dim] = product([axes[dim], Node(repeats, "number of repeats")])
    else:
        freeze(axes[dim], PICKED)
        axes[dim] = Node(out.shape[dim], PICKED)
    return recording.put(out, axes)


@rule("bucketize", "isin")
def compared(recording: Recording, operator: Any, out: Tensor, source: Any, others: Any, **kwargs: Any) -> None:
    """Each element is looked for in a list."""
    freeze_all((axis for tensor in tensors_in([others]) for axis in recording.axes(tensor)), "a list that is searched")
    elementwise(recording, operator, out, source)


@rule("multinomial")
def multinomial(recording: Recording, operator: Any, out: Tensor, source: Tensor, *args: Any, **kwargs: Any) -> None:
    """Positions drawn by their probability."""
    *outer, axis = recording.axes(source)
    freeze(axis, PICKED)
    recording.put(out, [*outer, Node(out.shape[-1], PICKED)])
