"""Batch norm and ReLU of training as one operation on a GPU, for activations whose channels lie last in memory.

PyTorch has four kernels forward and four backward for the two, which take a third of the time of PreResNet18's
kernels. Here are three and three, which read and write memory less often. Sums are in single precision and in a fixed
order, so that they give the same bits every time.

An activation [samples, channels, height, width] with channels last is a matrix with a column for each channel. Where
channels are few, several rows are taken as one, so that a row has at least 64 columns.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

COLUMNS = 64
"""Columns that a program works on."""
ELEMENTS = 4096
"""Elements that a program holds at a time."""
PROGRAMS = 264
"""Programs that sum up a matrix, at most: two for each processor of a large GPU."""
TILES = 4
"""Tiles that such a program sums up, at least: what fewer programs leave is added up sooner."""


@triton.jit
def _tile(row, column, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Where the elements of a tile lie, and which of them there are."""
    r = row + tl.arange(0, ROWS)
    c = column * COLUMNS + tl.arange(0, COLUMNS)
    return r[:, None] * columns + c[None, :], (r < rows)[:, None] & (c < columns)[None, :]


@triton.jit
def _moments(x, sums, rows, columns, share, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The mean of each column and the sum of the squares of what is left without it, of a share of the rows.

    Sums are taken less the first element of the column, so that a mean far from 0 costs no precision.
    """
    part, column = tl.program_id(0), tl.program_id(1)
    c = column * COLUMNS + tl.arange(0, COLUMNS)
    there = c < columns
    first = tl.load(x + part * share * columns + c, mask=there, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    squares = tl.zeros((ROWS, COLUMNS), tl.float32)
    end = tl.minimum((part + 1) * share, rows)
    for row in range(part * share, end, ROWS):
        at, inside = _tile(row, column, end, columns, ROWS, COLUMNS)
        values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        values = tl.where(inside, values - first[None, :], 0.0)
        total += values
        squares += values * values
    whole = tl.sum(total, 0)
    shift = whole / (end - part * share)
    out = sums + part * 2 * columns + c
    tl.store(out, first + shift, mask=there)
    tl.store(out + columns, tl.sum(squares, 0) - whole * shift, mask=there)


@triton.jit
def _part(start, c, channels, columns, parts, PARTS: tl.constexpr):
    """Where some parts of the sums of these channels lie, which of them there are, and the numbers of the parts.

    Where columns are several rows of channels, a part has as many sums of a channel.
    """
    fold = columns // channels
    each = start + tl.arange(0, PARTS)
    at = (each // fold * 2 * columns + each % fold * channels)[:, None] + c[None, :]
    return at, (each < parts * fold)[:, None] & (c < channels)[None, :], each // fold


@triton.jit
def _statistics(
    sums,
    weight,
    bias,
    found,
    count,
    epsilon,
    rows,
    share,
    channels,
    columns,
    parts,
    PARTS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Mean, 1 / deviation, and the factor and the summand that normalise a channel."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    there = c < channels
    fold = columns // channels
    total = tl.zeros((PARTS, CHANNELS), tl.float32)
    for start in range(0, parts * fold, PARTS):
        at, inside, part = _part(start, c, channels, columns, parts, PARTS)
        number = tl.minimum(share, rows - part * share).to(tl.float32)[:, None]
        total += tl.load(sums + at, mask=inside, other=0.0) * tl.where(inside, number, 0.0)
    mean = tl.sum(total, 0) / count
    squares = tl.zeros((PARTS, CHANNELS), tl.float32)
    for start in range(0, parts * fold, PARTS):
        at, inside, part = _part(start, c, channels, columns, parts, PARTS)
        number = tl.minimum(share, rows - part * share).to(tl.float32)[:, None]
        apart = tl.load(sums + at, mask=inside, other=0.0) - mean[None, :]
        own = tl.load(sums + at + columns, mask=inside, other=0.0)
        squares += tl.where(inside, own + number * apart * apart, 0.0)
    variance = tl.maximum(tl.sum(squares, 0) / count, 0.0, propagate_nan=tl.PropagateNan.ALL)
    inverse = 1.0 / tl.sqrt(variance + epsilon)
    factor = tl.load(weight + c, mask=there, other=0.0).to(tl.float32) * inverse
    summand = tl.load(bias + c, mask=there, other=0.0).to(tl.float32) - mean * factor
    tl.store(found + c, mean, mask=there)
    tl.store(found + channels + c, inverse, mask=there)
    tl.store(found + 2 * channels + c, factor, mask=there)
    tl.store(found + 3 * channels + c, summand, mask=there)


@triton.jit
def _normalise(x, found, y, rows, columns, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """max(0, factor * x + summand)."""
    column = tl.program_id(1)
    at, inside = _tile(tl.program_id(0) * ROWS, column, rows, columns, ROWS, COLUMNS)
    c = (column * COLUMNS + tl.arange(0, COLUMNS)) % channels
    factor = tl.load(found + 2 * channels + c)[None, :]
    summand = tl.load(found + 3 * channels + c)[None, :]
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    out = tl.maximum(values * factor + summand, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + at, out, mask=inside)


@triton.jit
def _gradient_sums(x, dy, found, sums, rows, columns, channels, share, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sums of the gradient behind the ReLU, and of its products with the normalised x, of a share of the rows."""
    part, column = tl.program_id(0), tl.program_id(1)
    c = column * COLUMNS + tl.arange(0, COLUMNS)
    of = found + c % channels
    mean, inverse = tl.load(of)[None, :], tl.load(of + channels)[None, :]
    factor, summand = tl.load(of + 2 * channels)[None, :], tl.load(of + 3 * channels)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    products = tl.zeros((ROWS, COLUMNS), tl.float32)
    end = tl.minimum((part + 1) * share, rows)
    for row in range(part * share, end, ROWS):
        at, inside = _tile(row, column, end, columns, ROWS, COLUMNS)
        values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.where(values * factor + summand > 0.0, gradient, 0.0)
        total += gradient
        products += gradient * (values - mean) * inverse
    out = sums + part * 2 * columns + c
    there = c < columns
    tl.store(out, tl.sum(total, 0), mask=there)
    tl.store(out + columns, tl.sum(products, 0), mask=there)


@triton.jit
def _gradient_totals(sums, gradients, channels, columns, parts, PARTS: tl.constexpr, CHANNELS: tl.constexpr):
    """The gradients of the weights and of the biases."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    total = tl.zeros((PARTS, CHANNELS), tl.float32)
    products = tl.zeros((PARTS, CHANNELS), tl.float32)
    for start in range(0, parts * (columns // channels), PARTS):
        at, inside, _ = _part(start, c, channels, columns, parts, PARTS)
        total += tl.load(sums + at, mask=inside, other=0.0)
        products += tl.load(sums + at + columns, mask=inside, other=0.0)
    tl.store(gradients + c, tl.sum(products, 0), mask=c < channels)
    tl.store(gradients + channels + c, tl.sum(total, 0), mask=c < channels)


@triton.jit
def _gradient(x, dy, found, gradients, dx, count, rows, columns, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The gradient of the activation."""
    column = tl.program_id(1)
    at, inside = _tile(tl.program_id(0) * ROWS, column, rows, columns, ROWS, COLUMNS)
    c = (column * COLUMNS + tl.arange(0, COLUMNS)) % channels
    mean, inverse = tl.load(found + c)[None, :], tl.load(found + channels + c)[None, :]
    factor, summand = tl.load(found + 2 * channels + c)[None, :], tl.load(found + 3 * channels + c)[None, :]
    products, total = tl.load(gradients + c)[None, :], tl.load(gradients + channels + c)[None, :]
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.where(values * factor + summand > 0.0, gradient, 0.0)
    normalised = (values - mean) * inverse
    tl.store(dx + at, factor * (gradient - (total + normalised * products) / count), mask=inside)


class NormReLU(torch.autograd.Function):
    """The operation and its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        """Normalise, and keep what the gradient needs: x and four numbers for each channel."""
        grid = _Grid(x)
        weight, bias = weight.contiguous(), bias.contiguous()
        found = torch.empty(4, grid.channels, device=x.device, dtype=torch.float32)
        y = torch.empty_like(x)
        sums = grid.empty_sums(x)
        _moments[grid.parts, grid.blocks](x, sums, *grid.shape[:2], grid.share, **grid.tile)
        own = sums, weight, bias, found, grid.count, epsilon, grid.shape[0], grid.share
        _statistics[grid.ends](*own, *grid.sizes, **grid.end)
        _normalise[grid.tiles, grid.blocks](x, found, y, *grid.shape, **grid.tile)
        ctx.save_for_backward(x, found)
        ctx.dtypes = weight.dtype, bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        """The gradients of the activation, the weights and the biases."""
        x, found = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        grid = _Grid(x)
        gradients = torch.empty(2, grid.channels, device=x.device, dtype=torch.float32)
        sums = grid.empty_sums(x)
        _gradient_sums[grid.parts, grid.blocks](x, dy, found, sums, *grid.shape, grid.share, **grid.tile)
        _gradient_totals[grid.ends](sums, gradients, *grid.sizes, **grid.end)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            _gradient[grid.tiles, grid.blocks](x, dy, found, gradients, dx, grid.count, *grid.shape, **grid.tile)
        of_weight, of_bias = ctx.dtypes
        return dx, gradients[0].to(of_weight), gradients[1].to(of_bias), None


class _Grid:
    """How an activation is shared out among programs."""

    def __init__(self, x: Tensor) -> None:
        self.channels = x.shape[1]
        self.count = x.numel() // self.channels
        few = COLUMNS % self.channels == 0 and x.numel() % COLUMNS == 0
        columns = COLUMNS if few else self.channels
        rows = x.numel() // columns
        width = min(COLUMNS, triton.next_power_of_2(columns))
        height = ELEMENTS // width
        self.blocks = triton.cdiv(columns, width)
        self.tiles = triton.cdiv(rows, height)
        programs = max(1, min(self.tiles // TILES, PROGRAMS // self.blocks))
        self.share = triton.cdiv(self.tiles, programs) * height
        self.parts = triton.cdiv(rows, self.share)
        self.shape = rows, columns, self.channels
        self.sizes = self.channels, columns, self.parts
        self.tile = {"ROWS": height, "COLUMNS": width}
        self.end = {"PARTS": 256, "CHANNELS": 16}
        self.ends = (triton.cdiv(self.channels, self.end["CHANNELS"]),)

    def empty_sums(self, x: Tensor) -> Tensor:
        """Where programs leave two sums of each column."""
        return torch.empty(self.parts, 2, self.shape[1], device=x.device, dtype=torch.float32)
