"""Rules of operators that sum, pick or order along dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedwidth.plan.node import Node, find, freeze, use
from fedwidth.plan.rules.registry import argument_names, rule
from fedwidth.plan.watching.recording import Recording, tensors_in


def _dims(operator: Any, source: Tensor, args: Any, kwargs: Any) -> tuple[set[int], bool]:
    """Which dimensions an operator reduces, and whether they stay with size 1."""
    named = dict(zip(argument_names(operator)[1:], args, strict=False)) | kwargs
    dim = named.get("dim")
    if dim is None or dim == []:
        dims = set(range(source.dim()))
    else:
        dims = {d % max(source.dim(), 1) for d in (dim if isinstance(dim, (list, tuple)) else [dim])}
    return dims, bool(named.get("keepdim", False))


@rule(
    *("sum", "nansum", "mean", "amax", "amin", "aminmax", "prod", "var", "std", "var_mean", "std_mean", "any", "all"),
    *("max", "min", "argmax", "argmin", "logsumexp", "linalg_vector_norm", "norm", "count_nonzero"),
)
def reduction(recording: Recording, operator: Any, out: Any, source: Tensor, *args: Any, **kwargs: Any) -> None:
    """The result does not depend on the order of the units, except where it says which one won."""
    axes = recording.axes(source)
    dims, keep = _dims(operator, source, args, kwargs)
    kept = [Node(1) if d in dims else axis for d, axis in enumerate(axes) if keep or d not in dims]
    name = operator._schema.name

    def forbid() -> None:
        for dim in dims:
            freeze(axes[dim], "the position of the largest unit is used")

    for axis in axes:
        use(axis)
    for place, tensor in enumerate(tensors_in(out)):
        recording.put(tensor, kept)
        if name in ("aten::sum", "aten::nansum"):
            recording.evidence.summed(tensor, [axes[dim] for dim in dims])
        if name in ("aten::argmax", "aten::argmin") or (name in ("aten::max", "aten::min") and place == 1):
            recording.defer(tensor, forbid)


@rule("cumsum", "cumprod", "sort", "topk", "argsort", "logcumsumexp", "cummax", "cummin", "kthvalue", "median")
def ordered(recording: Recording, operator: Any, out: Any, source: Tensor, *args: Any, **kwargs: Any) -> None:
    """The order of the units matters."""
    axes = recording.axes(source)
    named = dict(zip(argument_names(operator)[1:], args, strict=False)) | kwargs
    dim = named.get("dim", None if "median" in str(operator) else -1)
    for place in range(len(axes)) if dim is None else [dim]:
        if axes:
            freeze(axes[place], "the order of the units matters")
    for tensor in tensors_in(out):
        if tensor.dim() == len(axes):
            fits = zip(axes, tensor.shape, strict=True)
            recording.put(tensor, [a if find(a).size == n else Node(n, "picked units") for a, n in fits])
        else:
            recording.put(tensor, [a for place, a in enumerate(axes) if dim is not None and place != dim % len(axes)])


@rule(
    *("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool2d", "adaptive_max_pool2d"),
    *("adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d"),
    *("_adaptive_avg_pool3d", "adaptive_avg_pool2d", "adaptive_avg_pool1d", "upsample_nearest1d"),
    *("upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d"),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "reflection_pad1d", "reflection_pad2d"),
    *("replication_pad1d", "replication_pad2d", "reflection_pad3d", "replication_pad3d"),
)
def spatial(recording: Recording, operator: Any, out: Any, source: Tensor, *args: Any, **kwargs: Any) -> None:
    """Channels stay what they are, the spatial size changes; a window of one position changes nothing."""
    name = operator._schema.name
    count = next(n for n in (1, 2, 3) if f"{n}d" in name)
    axes = recording.axes(source)
    same = _single_windows(operator, count, args, kwargs) if "pool" in name and "adaptive" not in name else []
    for place in range(len(axes) - count, len(axes)):
        if place - len(axes) + count not in same:
            freeze(axes[place], "spatial size")
    for tensor in tensors_in(out):
        spatial = tensor.shape[-count:]
        fits = zip(axes[-count:], spatial, strict=True)
        new = [axis if place in same else Node(n, "spatial size") for place, (axis, n) in enumerate(fits)]
        recording.put(tensor, [*axes[:-count], *new])


def _single_windows(operator: Any, count: int, args: Any, kwargs: Any) -> list[int]:
    """The spatial dimensions along which a pooling reads one position at a time."""
    named = dict(zip(argument_names(operator)[1:], args, strict=False)) | kwargs

    def of(name: str, default: Sequence[int]) -> list[int]:
        given: Any = named.get(name) or default
        values = list(given) if isinstance(given, (list, tuple)) else [given]
        return values * count if len(values) == 1 else values

    kernel = of("kernel_size", [0])
    sizes = zip(kernel, of("stride", kernel), of("padding", [0]), strict=True)
    return [place for place, size in enumerate(sizes) if size == (1, 1, 0)]
