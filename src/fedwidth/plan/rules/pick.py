"""Rules of operators that pick or move positions: indexing, padding, shuffling."""

# ruff: noqa: ARG001 — all rules share one signature

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedwidth.plan.node import Node, concat, find, freeze, product, regroup, unify
from fedwidth.plan.recording import Recording
from fedwidth.plan.rules.registry import broadcast, rule, unknown


@rule("flip", "roll")
def reorder(recording: Recording, operator: Any, out: Tensor, source: Tensor, *args: Any) -> None:
    """Positions in another order along some dimensions."""
    axes = recording.axes(source)
    dims = (
        args[-1] if args and isinstance(args[-1], (list, tuple)) and (len(args) > 1 or "flip" in str(operator)) else ()
    )
    for dim in dims or range(len(axes)):
        freeze(axes[dim], "positions are reordered")
    recording.put(out, axes)


@rule("tril", "triu", "tril_", "triu_")
def triangle(recording: Recording, operator: Any, out: Tensor, source: Tensor, *args: Any) -> None:
    """Which elements stay depends on the position."""
    axes = recording.axes(source)
    for axis in axes[-2:]:
        freeze(axis, "triangular mask")
    recording.put(out, axes)


@rule("index")
def index(recording: Recording, operator: Any, out: Tensor, source: Tensor, indices: Sequence[Any]) -> None:
    """Positions picked by integer tensors."""
    axes = recording.axes(source)
    picked = [dim for dim, places in enumerate(indices) if places is not None]
    tensors = [indices[dim] for dim in picked]
    if any(places.dtype in (torch.bool, torch.uint8) for places in tensors):
        return unknown(recording, operator, out, source, tensors)
    for dim in picked:
        freeze(axes[dim], "positions picked by an index")
    adjacent = picked == list(range(picked[0], picked[-1] + 1))
    start = picked[0] if adjacent else 0
    shape = out.shape[start : start + out.dim() - source.dim() + len(picked)]
    middle = broadcast(recording, tensors, shape, operator)
    before = axes[:start]
    after = [axes[dim] for dim in range(start, len(axes)) if dim not in picked]
    return recording.put(out, [*before, *middle, *after])


@rule("index_select")
def index_select(recording: Recording, operator: Any, out: Tensor, source: Tensor, dim: int, places: Tensor) -> None:
    """Positions of one dimension picked by an integer tensor."""
    axes = list(recording.axes(source))
    freeze(axes[dim], "positions picked by an index")
    axes[dim] = recording.axes(places)[0] if places.dim() else Node(1)
    recording.put(out, axes)


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
            freeze(mine, "positions picked by an index")
    recording.put(out, result)


@rule("constant_pad_nd")
def pad(recording: Recording, operator: Any, out: Tensor, source: Tensor, widths: Sequence[int], *args: Any) -> None:
    """Constants before and after."""
    axes = list(recording.axes(source))
    for place in range(len(widths) // 2):
        dim, before, after = source.dim() - 1 - place, widths[2 * place], widths[2 * place + 1]
        if before < 0 or after < 0:
            freeze(axes[dim], "cropped")
            axes[dim] = Node(out.shape[dim], "cropped")
        elif before or after:
            padding = [Node(before, "padding"), Node(after, "padding")]
            axes[dim] = concat([padding[0], axes[dim], padding[1]])
    recording.put(out, axes)


@rule("pixel_shuffle")
def pixel_shuffle(recording: Recording, operator: Any, out: Tensor, source: Tensor, factor: int) -> None:
    """Channels (c x factor x factor) become (c), height and width grow."""
    *outer, channel, height, width = recording.axes(source)
    channels, rows, columns = regroup([channel], [out.shape[-3], factor, factor])
    _fix((rows, columns, height, width), "upscale factor")
    recording.put(out, [*outer, channels, product([height, rows]), product([width, columns])])


@rule("pixel_unshuffle")
def pixel_unshuffle(recording: Recording, operator: Any, out: Tensor, source: Tensor, factor: int) -> None:
    """Pixels become channels."""
    *outer, channel, height, width = recording.axes(source)
    _fix((height, width), "spatial size")
    new = product([channel, Node(factor, "downscale factor"), Node(factor, "downscale factor")])
    recording.put(out, [*outer, new, *(Node(size, "spatial size") for size in out.shape[-2:])])


@rule("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(recording: Recording, operator: Any, out: Tensor, source: Tensor, groups: int) -> None:
    """Channels (groups x c) become (c x groups)."""
    axes = list(recording.axes(source))
    major, minor = regroup([axes[1]], [groups, source.shape[1] // groups])
    freeze(major, "group count")
    axes[1] = product([minor, major])
    recording.put(out, axes)


def _fix(axes: Sequence[Node], reason: str) -> None:
    for axis in axes:
        freeze(axis, reason)
