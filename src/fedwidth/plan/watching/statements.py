"""What the integers in calls of torch functions state about axes.

Each function here reads one kind of call, e.g. `x.view(b, t, heads, -1)`, and tells the mode which argument is the size
of which axis. A call listed here accounts for all structure it creates; splits made elsewhere freeze what they split.
"""

# ruff: noqa: ARG001 — all share one signature

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fedwidth.plan.formulas import Length, atoms, formula_of
from fedwidth.plan.restructure import regroup
from fedwidth.plan.watching.follow import SizeMode

FACTORIES = ("zeros", "ones", "full", "empty", "rand", "randn")

Statement = Callable[[SizeMode, Any, tuple[Any, ...], dict[str, Any]], None]
STATEMENTS: dict[str, Statement] = {}


def states(*names: str) -> Callable[[Statement], Statement]:
    """Register what a torch function's integer arguments state."""

    def register(function: Statement) -> Statement:
        STATEMENTS.update(dict.fromkeys(names, function))
        return function

    return register


def _sizes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Sizes given as f(2, 3), f((2, 3)) or f(size=(2, 3))."""
    if args and isinstance(args[0], (tuple, list)):
        return args[0]
    return args or kwargs.get("size", kwargs.get("shape", ()))


@states("view", "reshape", "expand", "broadcast_to", *(f"new_{name}" for name in FACTORIES))
def _view(mode: SizeMode, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    mode.state_all(_sizes(args[1:], kwargs), mode.recording.axes(out))


@states(*FACTORIES)
def _create(mode: SizeMode, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    mode.state_all(_sizes(args, kwargs), mode.recording.axes(out))


@states("view_as", "reshape_as", "expand_as")
def _like(mode: SizeMode, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    mode.state_all(mode.shape(args[1]), mode.recording.axes(out))


@states("flatten", "ravel", "squeeze", "swapaxes", "t", "transpose", "permute", "movedim", "__setattr__")
def _silent(mode: SizeMode, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """No size is stated."""


@states("unflatten")
def _unflatten(mode: SizeMode, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    dim = (args[1] if len(args) > 1 else kwargs["dim"]) % args[0].dim()
    sizes = args[2] if len(args) > 2 else kwargs["sizes"]
    mode.state_all(sizes, mode.recording.axes(out)[dim:])


@states("repeat")
def _repeat(mode: SizeMode, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    repeats = _sizes(args[1:], kwargs)
    source = (1,) * (len(repeats) - args[0].dim()) + tuple(args[0].shape)
    for count, size, axis in zip(repeats, source, mode.recording.axes(out), strict=True):
        if count > 1:
            mode.state(count, regroup([axis], [int(count), size])[0])


@states("repeat_interleave")
def _interleave(mode: SizeMode, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    named = dict(zip(("input", "repeats", "dim"), args, strict=False)) | kwargs
    repeats, dim = named["repeats"], named.get("dim")
    if isinstance(repeats, int) and dim is not None and repeats > 1:
        axis = mode.recording.axes(out)[dim]
        mode.state(repeats, regroup([axis], [out.shape[dim] // int(repeats), int(repeats)])[1])


@states("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes")
def _split(mode: SizeMode, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    named = dict(zip(("tensor", "sizes", "dim"), args, strict=False)) | kwargs
    sizes = next(value for name, value in named.items() if name not in ("tensor", "input", "self", "dim"))
    axes = [mode.recording.axes(part)[named.get("dim", 0)] for part in out]
    mode.state_all(sizes if isinstance(sizes, (tuple, list)) else [sizes] * len(axes), axes)


@states("chunk", "unsafe_chunk", "tensor_split")
def _chunk(mode: SizeMode, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    first, *others = (mode.recording.axes(part)[dim] for part in out)
    for axis in others:  # equal parts stay equal
        mode.equate(Length(first), axis)


@states("as_strided")
def _as_strided(mode: SizeMode, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    named = dict(zip(("input", "size", "stride"), args, strict=False)) | kwargs
    mode.state_all(named["size"], mode.recording.axes(out))
    for stride in named["stride"]:
        expected = mode.stride_formula(args[0], int(stride))
        if any(isinstance(atom, Length) for atom in atoms(expected)):
            mode.recording.constraints.equate(formula_of(stride), expected)


@states("narrow")
def _narrow(mode: SizeMode, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    named = dict(zip(("input", "dim", "start", "length"), args, strict=False)) | kwargs
    dim = named["dim"]
    mode.border(named["start"], mode.recording.axes(args[0])[dim])
    mode.state(named["length"], mode.recording.axes(out)[dim])


@states("__getitem__", "__setitem__")
def _item(mode: SizeMode, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    axes = mode.recording.axes(args[0])
    for dim, key in _keys(args[1], len(axes)):
        if isinstance(key, slice) and key.step in (None, 1):
            mode.border(key.start, axes[dim])
            mode.border(key.stop, axes[dim])


def _keys(key: Any, dims: int) -> Iterator[tuple[int, Any]]:
    """(dimension, key) pairs of an index expression."""
    keys = key if isinstance(key, tuple) else (key,)

    def width(item: Any) -> int:
        if item is None or isinstance(item, bool) or item is Ellipsis:
            return 0
        return item.dim() if isinstance(item, Tensor) and item.dtype == torch.bool else 1

    dim = 0
    for item in keys:
        if item is Ellipsis:
            dim += dims - sum(map(width, keys))
        elif width(item):
            yield dim, item
            dim += width(item)


@states(*(f"conv{n}d" for n in (1, 2, 3)), *(f"conv_transpose{n}d" for n in (1, 2, 3)))
def _convolution(mode: SizeMode, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    groups = args[6] if len(args) > 6 else kwargs.get("groups", 1)
    weight = args[1] if len(args) > 1 else kwargs["weight"]
    if groups > 1:
        mode.state(groups, regroup([mode.recording.axes(weight)[0]], [int(groups), weight.shape[0] // int(groups)])[0])


@states("group_norm")
def _group_norm(mode: SizeMode, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    groups = args[1] if len(args) > 1 else kwargs["num_groups"]
    if groups > 1:
        mode.state(
            groups, regroup([mode.recording.axes(args[0])[1]], [int(groups), args[0].shape[1] // int(groups)])[0]
        )


@states("layer_norm", "rms_norm")
def _layer_norm(mode: SizeMode, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    shape = args[1] if len(args) > 1 else kwargs["normalized_shape"]
    mode.state_all(shape, mode.recording.axes(out)[-len(shape) :])
