"""Rules of operators that read the same elements in another shape: views, slices, concatenations."""

# ruff: noqa: ARG001 — all rules share one signature

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedwidth.plan.formulas import Length
from fedwidth.plan.node import Node, Unaligned, concat, find, freeze, leaves, product
from fedwidth.plan.restructure import cut, regroup, unify
from fedwidth.plan.rules.registry import rule, unknown
from fedwidth.plan.watching.recording import Recording


@rule("view", "_unsafe_view", "reshape", "_reshape_alias", "squeeze")
def view(recording: Recording, operator: Any, out: Tensor, source: Tensor, *args: Any) -> None:
    """Read the same elements in another shape."""
    made: list[Node] = []
    recording.put(out, regroup(recording.axes(source), out.shape, made))
    if not recording.sized:  # inside another operator: nobody knows which of the new factors is a constant
        for leaf in made:
            freeze(leaf, f"split inside an operator by {operator}")


@rule("squeeze_")
def squeeze_in_place(recording: Recording, operator: Any, out: Tensor, *args: Any) -> None:
    """Drop dimensions of size 1."""
    recording.put(out, [axis for axis in recording.axes(out) if find(axis).size != 1])


@rule("unsqueeze", "unsqueeze_")
def unsqueeze(recording: Recording, operator: Any, out: Tensor, source: Tensor, dim: int) -> None:
    """Insert a dimension of size 1."""
    axes = list(recording.axes(source))
    axes.insert(dim % out.dim(), Node(1))
    recording.put(out, axes)


@rule("permute")
def permute(recording: Recording, operator: Any, out: Tensor, source: Tensor, dims: Sequence[int]) -> None:
    """Dimensions in another order."""
    axes = recording.axes(source)
    recording.put(out, [axes[dim] for dim in dims])


@rule("t", "t_", "numpy_T")
def reverse(recording: Recording, operator: Any, out: Tensor, source: Tensor) -> None:
    """Dimensions in reverse order."""
    recording.put(out, recording.axes(source)[::-1])


@rule("transpose", "transpose_", "swapaxes", "swapaxes_")
def transpose(recording: Recording, operator: Any, out: Tensor, source: Tensor, first: int, second: int) -> None:
    """Two dimensions change places."""
    axes = list(recording.axes(source))
    axes[first], axes[second] = axes[second], axes[first]
    recording.put(out, axes)


@rule("as_strided_", "resize_")
def in_place_shape(recording: Recording, operator: Any, out: Tensor, source: Tensor, size: Any, *args: Any) -> None:
    """Harmless as long as the shape stays."""
    if [find(axis).size for axis in recording.axes(source)] != list(size):
        unknown(recording, operator, out, source)


@rule("expand")
def expand(recording: Recording, operator: Any, out: Tensor, source: Tensor, *args: Any, **kwargs: Any) -> None:
    """Repeat along dimensions of size 1: those become as wide as what they meet."""
    axes = recording.axes(source)
    new = out.dim() - len(axes)
    padded = [Node(1)] * new + axes
    recording.put(out, [a if find(a).size == n else Node(n) for a, n in zip(padded, out.shape, strict=True)])


@rule("view_as_complex")
def view_as_complex(recording: Recording, operator: Any, out: Tensor, source: Tensor) -> None:
    """The last dimension is (real, imaginary)."""
    *axes, pair = recording.axes(source)
    freeze(pair, "real and imaginary part")
    recording.put(out, axes)


@rule("view_as_real")
def view_as_real(recording: Recording, operator: Any, out: Tensor, source: Tensor) -> None:
    """Adds the dimension (real, imaginary)."""
    recording.put(out, [*recording.axes(source), Node(2, "real and imaginary part")])


@rule("slice")
def slice_(
    recording: Recording, operator: Any, out: Tensor, source: Tensor, dim: int = 0, start: Any = None, *args: Any
) -> None:
    """Some positions of one dimension."""
    axes = list(recording.axes(source))
    dim %= source.dim()
    full, length, step = source.shape[dim], out.shape[dim], args[1] if len(args) > 1 else 1
    if length != full:
        begin = min(max((start or 0) + (full if (start or 0) < 0 else 0), 0), full)
        whole = axes[dim]
        axes[dim] = _sliced(recording, whole, begin, length, step)
        recording.cut(source, axes[dim], whole)
    recording.put(out, axes)


def _sliced(recording: Recording, axis: Node, begin: int, length: int, step: int) -> Node:
    size = find(axis).size
    try:
        if step == 1:
            before = list(leaves(axis))
            middle, _ = cut(cut(axis, begin)[1], length)
            if not recording.sized and list(leaves(axis)) != before:
                raise Unaligned
            return middle
        if size % step or begin >= step or length != size // step:
            raise Unaligned
        rows, phase = regroup([axis], [size // step, step])
        freeze(phase, "strided slice")
        return rows
    except Unaligned:
        freeze(axis, "sliced at fixed positions")
        return Node(length, "sliced at fixed positions")


@rule("select")
def select(recording: Recording, operator: Any, out: Tensor, source: Tensor, dim: int, index: int) -> None:
    """One position of one dimension."""
    axes = list(recording.axes(source))
    picked = axes.pop(dim % source.dim())
    recording.put(out, axes)
    recording.defer(out, lambda: freeze(picked, "units are addressed one by one"))


@rule("unbind")
def unbind(recording: Recording, operator: Any, out: Sequence[Tensor], source: Tensor, dim: int = 0) -> None:
    """Every position of one dimension. Parts of a constant (initial states of several layers) are independent."""
    axes = list(recording.axes(source))
    freeze(axes.pop(dim % source.dim()), "units are addressed one by one")
    for place, tensor in enumerate(out):
        recording.put(tensor, recording.loosen(source, axes) if place else axes)


@rule("split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "tensor_split")
def split(recording: Recording, operator: Any, out: Sequence[Tensor], source: Tensor, sizes: Any, dim: int = 0) -> None:
    """Consecutive parts of one dimension."""
    axes = recording.axes(source)
    dim %= source.dim()
    parts, rest = [], axes[dim]
    try:
        for tensor in out:
            part, rest = cut(rest, tensor.shape[dim])
            parts.append(part)
    except Unaligned:
        freeze(axes[dim], "split at fixed positions")
        parts = [Node(tensor.shape[dim], "split at fixed positions") for tensor in out]
    for tensor, part in zip(out, parts, strict=True):
        recording.cut(source, part, axes[dim])
        recording.put(tensor, [*axes[:dim], part, *axes[dim + 1 :]])
        if not recording.sized:  # a chunk inside an operator (the gates of an LSTM): equal parts
            recording.constraints.equate(Length(part), Length(parts[0]))


@rule("cat", "concat")
def cat(recording: Recording, operator: Any, out: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> None:
    """Tensors one after the other along a dimension."""
    dim %= out.dim()
    parts = [recording.axes(tensor) for tensor in tensors if tensor.dim() == out.dim()]
    for part in parts[1:]:
        for place, axis in enumerate(part):
            if place != dim:
                unify(parts[0][place], axis, str(operator))
    joined = concat([part[dim] for part in parts])
    recording.put(out, [*parts[0][:dim], joined, *parts[0][dim + 1 :]])


@rule("stack")
def stack(recording: Recording, operator: Any, out: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> None:
    """Tensors along a new dimension; only if the result is read need their units be the same."""
    parts = [recording.axes(tensor) for tensor in tensors]
    axes = list(parts[0])
    axes.insert(dim % out.dim(), Node(len(parts), "stacked tensors"))
    recording.put(out, axes)

    def tie() -> None:
        for part in parts[1:]:
            for mine, its in zip(parts[0], part, strict=True):
                unify(mine, its, str(operator))

    recording.defer(out, tie)


@rule("repeat")
def repeat(recording: Recording, operator: Any, out: Tensor, source: Tensor, repeats: Sequence[int]) -> None:
    """Tile every dimension."""
    reason = None if recording.sized else "number of repeats"
    padded = [Node(1)] * (len(repeats) - source.dim()) + recording.axes(source)
    recording.put(out, [product([Node(n, reason), axis]) for n, axis in zip(repeats, padded, strict=True)])
