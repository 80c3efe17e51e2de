"""Rules of operators that read overlapping windows, sample pictures, or turn positions into frequencies."""

# ruff: noqa: ARG001 — all rules share one signature

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedwidth.plan.node import Node, Unaligned, freeze, is_fixed, product
from fedwidth.plan.restructure import regroup
from fedwidth.plan.rules.registry import freeze_all, rule
from fedwidth.plan.watching.recording import Recording

WINDOWS, STRIDES, FREQUENCIES = "read in windows", "read by strides", "turned into frequencies"


@rule("unfold")
def unfold(recording: Recording, operator: Any, out: Tensor, source: Tensor, dim: int, size: int, step: int) -> None:
    """Windows along one dimension; the positions inside a window are a new last dimension."""
    axes = list(recording.axes(source))
    if not axes:
        return recording.put_fixed(out, WINDOWS)
    freeze(axes[dim], WINDOWS)
    axes[dim] = Node(out.shape[dim], WINDOWS)
    return recording.put(out, [*axes, Node(size, WINDOWS)])


@rule("im2col")
def image_to_columns(
    recording: Recording, operator: Any, out: Tensor, source: Tensor, kernel: Sequence[int], *args: Any
) -> None:
    """Patches of [batch, channel, height, width] as columns [batch, channel x kernel, patch]."""
    *outer, channels, height, width = recording.axes(source)
    freeze_all((height, width), "spatial size")
    rows = product([channels, *(Node(size, "kernel size") for size in kernel)])
    recording.put(out, [*outer, rows, Node(out.shape[-1], "spatial size")])


@rule("col2im")
def columns_to_image(
    recording: Recording, operator: Any, out: Tensor, source: Tensor, size: Any, kernel: Sequence[int], *args: Any
) -> None:
    """Columns [batch, channel x kernel, patch] added up to pictures [batch, channel, height, width]."""
    *outer, rows, patches = recording.axes(source)
    channels, *inside = regroup([rows], [out.shape[-3], *kernel])
    freeze_all((*inside, patches), "kernel size")
    recording.put(out, [*outer, channels, *(Node(length, "spatial size") for length in out.shape[-2:])])


@rule("as_strided")
def as_strided(
    recording: Recording,
    operator: Any,
    out: Tensor,
    source: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> None:
    """Other sizes and strides over the same memory: dimensions that keep both are what they were."""
    axes = recording.axes(source)
    layout = list(zip(axes, source.shape, source.stride(), strict=True))
    kept = [(n, s) for n, s in zip(size, stride, strict=True) if n > 1]
    for axis, n, s in layout:
        if (n, s) not in kept:
            freeze(axis, STRIDES)
    free = [(n, s) for axis, n, s in layout if not is_fixed(axis)]
    moved = offset is not None and offset != source.storage_offset()
    for n, s in kept:
        for length, step in free:  # no window may begin inside a row of units that can be dropped
            if (n, s) != (length, step) and s % (length * step) and (n - 1) * s >= step:
                raise Unaligned
    if moved and free:
        raise Unaligned
    found = {(n, s): axis for axis, n, s in layout if n > 1}
    new = [found.get(pair) or Node(pair[0], STRIDES) for pair in zip(size, stride, strict=True)]
    recording.put(out, new)


@rule("_fft_c2c", "_fft_r2c", "_fft_c2r")
def fourier(recording: Recording, operator: Any, out: Tensor, source: Tensor, dims: Sequence[int], *args: Any) -> None:
    """Every frequency depends on every position, and on where it is."""
    axes = list(recording.axes(source))
    for dim in dims:
        freeze(axes[dim], FREQUENCIES)
        axes[dim] = Node(out.shape[dim], FREQUENCIES)
    recording.put(out, axes)


@rule("grid_sampler_2d", "grid_sampler_3d", "cudnn_grid_sampler")
def grid_sample(recording: Recording, operator: Any, out: Tensor, source: Tensor, grid: Tensor, *args: Any) -> None:
    """Pictures [batch, channel, …] sampled at the places of a grid [batch, …, coordinate]."""
    batch, channels, *spatial = recording.axes(source)
    freeze_all((*spatial, *recording.axes(grid)[1:]), "spatial size")
    recording.put(out, [batch, channels, *(Node(size, "spatial size") for size in out.shape[2:])])
