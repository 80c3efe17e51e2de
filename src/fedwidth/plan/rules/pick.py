"""Rules of operators that move positions: padding, shuffling, triangles, diagonals."""

# ruff: noqa: ARG001 — all rules share one signature

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedwidth.plan.node import Node, concat, find, freeze, product
from fedwidth.plan.restructure import regroup
from fedwidth.plan.rules.registry import freeze_all, rule
from fedwidth.plan.watching.recording import Recording


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
    freeze_all((rows, columns, height, width), "upscale factor")
    recording.put(out, [*outer, channels, product([height, rows]), product([width, columns])])


@rule("pixel_unshuffle")
def pixel_unshuffle(recording: Recording, operator: Any, out: Tensor, source: Tensor, factor: int) -> None:
    """Pixels become channels."""
    *outer, channel, height, width = recording.axes(source)
    freeze_all((height, width), "spatial size")
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


@rule("diagonal")
def diagonal(
    recording: Recording, operator: Any, out: Tensor, source: Tensor, offset: int = 0, first: int = 0, second: int = 1
) -> None:
    """The elements whose two positions are equal."""
    axes = recording.axes(source)
    mine, its = axes[first], axes[second]
    rest = [axis for dim, axis in enumerate(axes) if dim not in (first % len(axes), second % len(axes))]
    if offset or find(mine) is not find(its):
        freeze_all((mine, its), "positions on a diagonal")
        mine = Node(out.shape[-1], "positions on a diagonal")
    recording.put(out, [*rest, mine])


@rule("diag_embed")
def diag_embed(
    recording: Recording, operator: Any, out: Tensor, source: Tensor, offset: int = 0, first: int = -2, second: int = -1
) -> None:
    """A matrix with these elements on its diagonal, and zeros elsewhere."""
    *outer, axis = recording.axes(source)
    if offset:
        freeze(axis, "positions on a diagonal")
        axis = Node(out.shape[first], "positions on a diagonal")
    places = sorted((first % out.dim(), second % out.dim()))
    for place in places:
        outer.insert(place, axis)
    recording.put(out, outer)
