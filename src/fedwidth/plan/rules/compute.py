"""Rules of operators that multiply, convolve and look up."""

# ruff: noqa: ARG001 — all rules share one signature

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedwidth.plan.node import INPUT, Node, find, freeze, product, use
from fedwidth.plan.restructure import cut, regroup, unify
from fedwidth.plan.rules.registry import broadcast, rule, use_all
from fedwidth.plan.watching.recording import Recording, tensors_in

ROW_BYTES = 16
"""What the rows of a grouped product are aligned to."""


@rule("mm")
def matrix_product(recording: Recording, operator: Any, out: Tensor, left: Tensor, right: Tensor, *_: Any) -> None:
    """[n, k] @ [k, m]."""
    (rows, inner), (same, columns) = recording.axes(left), recording.axes(right)
    unify(inner, same, str(operator))
    use_all(rows, inner, columns)
    recording.put(out, [rows, columns])
    recording.tally.multiply(rows, inner, columns)
    recording.evidence.multiplied(out, left, right, inner)
    recording.constants.meet(left, right)


@rule("addmm")
def add_matrix_product(
    recording: Recording, operator: Any, out: Tensor, bias: Tensor, left: Tensor, right: Tensor, **_: Any
) -> None:
    """bias + [n, k] @ [k, m]."""
    matrix_product(recording, operator, out, left, right)
    broadcast(recording, [out, bias], out.shape, operator)


@rule("bmm")
def batched_product(recording: Recording, operator: Any, out: Tensor, left: Tensor, right: Tensor, *_: Any) -> None:
    """[b, n, k] @ [b, k, m]."""
    (batch, rows, inner), (batch2, same, columns) = recording.axes(left), recording.axes(right)
    unify(batch, batch2, str(operator))
    unify(inner, same, str(operator))
    use_all(batch, rows, inner, columns)
    recording.put(out, [batch, rows, columns])
    recording.tally.multiply(batch, rows, inner, columns)
    recording.evidence.multiplied(out, left, right, inner)
    recording.constants.meet(left, right)


@rule("baddbmm")
def add_batched_product(
    recording: Recording, operator: Any, out: Tensor, bias: Tensor, left: Tensor, right: Tensor, **_: Any
) -> None:
    """bias + [b, n, k] @ [b, k, m]."""
    batched_product(recording, operator, out, left, right)
    broadcast(recording, [out, bias], out.shape, operator)


@rule("_grouped_mm", "transformers::grouped_mm_fallback")
def grouped_product(
    recording: Recording, operator: Any, out: Tensor, left: Tensor, right: Tensor, *args: Any, **kwargs: Any
) -> None:
    """Rows of [n, k], each times the matrix of its expert in [experts, k, m]; a bias is [experts, m].

    The operator wants rows that begin at multiples of 16 bytes, here and in the gradients.
    """
    (rows, inner), (experts, same, columns) = recording.axes(left), recording.axes(right)
    freeze(experts, "experts")
    freeze(rows, "rows by expert")
    unify(inner, same, str(operator))
    use_all(inner, columns)
    recording.multiples += [(axis, max(1, ROW_BYTES // left.element_size())) for axis in (inner, columns)]
    recording.put(out, [rows, columns])
    recording.tally.multiply(rows, inner, columns)
    borders, *biases = tensors_in([*args, *kwargs.values()])
    recording.axes(borders)
    for bias in biases:
        unify(recording.axes(bias)[-1], columns, str(operator))


@rule("_cdist_forward", "_euclidean_dist")
def distances(recording: Recording, operator: Any, out: Tensor, left: Tensor, right: Tensor, *_: Any) -> None:
    """Distances between the rows of [..., n, k] and those of [..., m, k]."""
    *outer, rows, inner = recording.axes(left)
    columns, same = recording.axes(right)[-2:]
    unify(inner, same, str(operator))
    use_all(inner)
    recording.put(out, [*outer, rows, columns])


@rule("linear")
def linear(recording: Recording, operator: Any, out: Tensor, source: Tensor, weight: Tensor, *bias: Any) -> None:
    """[..., k] @ [m, k]ᵀ + bias."""
    *outer, inner = recording.axes(source)
    columns, same = recording.axes(weight)
    unify(inner, same, str(operator))
    use_all(inner, columns)
    recording.put(out, [*outer, columns])
    recording.tally.multiply(*outer, inner, columns)
    recording.constants.meet(source, weight)
    for tensor in tensors_in(bias):
        unify(recording.axes(tensor)[0], columns, str(operator))


@rule("_trilinear")
def bilinear(
    recording: Recording, operator: Any, out: Tensor, left: Tensor, weight: Tensor, right: Tensor, *_: Any
) -> None:
    """[n, k] times [m, k, l] times [n, l], summed over k and l: the only form that PyTorch calls it in."""
    (rows, first), (same_rows, second) = recording.axes(left), recording.axes(right)
    columns, *inner = recording.axes(weight)
    for mine, other in ((rows, same_rows), (first, inner[0]), (second, inner[1])):
        unify(mine, other, str(operator))
    use_all(rows, columns, first, second)
    recording.put(out, [rows, columns])
    recording.tally.multiply(rows, columns, first, second)
    for source in (left, right):
        recording.constants.meet(source, weight)


@rule("mv", "dot", "vdot")
def vector_product(recording: Recording, operator: Any, out: Tensor, left: Tensor, right: Tensor) -> None:
    """[n, k] @ [k] or [k] @ [k]."""
    *rows, inner = recording.axes(left)
    unify(inner, recording.axes(right)[0], str(operator))
    use_all(inner, *rows)
    recording.put(out, rows)
    recording.tally.multiply(*rows, inner)
    recording.evidence.multiplied(out, left, right, inner)
    recording.constants.meet(left, right)


@rule("convolution", "_convolution", "convolution_overrideable")
def convolution(
    recording: Recording, operator: Any, out: Tensor, source: Tensor, weight: Tensor, bias: Tensor | None, *args: Any
) -> None:
    """Weight [out, in / groups, kernel…], or [in, out / groups, kernel…] when transposed."""
    transposed, groups = args[3], args[5]
    axes, (first, second, *kernel) = recording.axes(source), recording.axes(weight)
    place = source.dim() - weight.dim() + 1
    for axis in kernel:
        freeze(axis, "kernel size")
    for axis in axes[place + 1 :]:
        freeze(axis, "spatial size")
    major, minor = regroup([first], [groups, weight.shape[0] // groups])
    if transposed:
        unify(axes[place], first, str(operator))
        channels = product([major, second])
    else:
        unify(axes[place], product([major, second]), str(operator))
        channels = first
        if weight.shape[1] == 1 and groups > 1:
            # Depthwise: the width is the number of groups, not how often each channel is used.
            freeze(minor, "depth multiplier")
    use_all(axes[place], channels, first, second)
    if bias is not None:
        unify(recording.axes(bias)[0], channels, str(operator))
    result = [*axes[:place], channels, *(Node(n, "spatial size") for n in out.shape[place + 1 :])]
    recording.put(out, result)
    recording.tally.multiply(*(axes if transposed else result), second, *kernel)
    recording.constants.meet(source, weight)


@rule("embedding")
def embedding(recording: Recording, operator: Any, out: Tensor, weight: Tensor, places: Tensor, *args: Any) -> None:
    """Rows of a table."""
    vocabulary, width = recording.axes(weight)
    freeze(vocabulary, "vocabulary")
    recording.vocabularies.append(vocabulary)
    use(width)
    recording.put(out, [*recording.axes(places), width])
    recording.evidence.embedded(out, width)


@rule("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    recording: Recording, operator: Any, out: Any, weight: Tensor, places: Tensor, *args: Any, **kwargs: Any
) -> None:
    """Sums of rows of a table."""
    vocabulary, width = recording.axes(weight)
    freeze(vocabulary, "vocabulary")
    recording.vocabularies.append(vocabulary)
    use(width)
    first, *others = tensors_in(out)
    recording.put(first, [Node(first.shape[0], INPUT), width])
    for tensor in others:
        recording.put_fixed(tensor, "statistics")


@rule("glu")
def gated(recording: Recording, operator: Any, out: Tensor, source: Tensor, dim: int = -1) -> None:
    """First half times sigmoid of the second half."""
    axes = list(recording.axes(source))
    value, gate = cut(axes[dim], out.shape[dim])
    unify(value, gate, str(operator))
    use(value)
    axes[dim] = value
    recording.put(out, axes)


@rule("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell")
def recurrent_cell(
    recording: Recording, operator: Any, out: Any, inputs: Tensor, hidden: Tensor, state: Tensor, *biases: Any
) -> None:
    """Gates [batch, gates * units] of an LSTM (4) or GRU (3) and the state [batch, units]."""
    batch, units = recording.axes(state)
    for tensor in [inputs, hidden, *tensors_in(biases)]:
        rest = recording.axes(tensor)[-1]
        while find(rest).size:
            gate, rest = cut(rest, state.shape[-1])
            unify(gate, units, str(operator))
    use(units)
    for tensor in tensors_in(out):
        known = tensor.shape == state.shape
        recording.put(tensor, [batch, units] if known else [Node(n, "workspace") for n in tensor.shape])


@rule(
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
)
def attention(
    recording: Recording, operator: Any, out: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> None:
    """softmax(query keyᵀ) value over [batch, head, position, unit]."""
    (batch, heads, length, unit) = recording.axes(query)
    keys, values = recording.axes(key), recording.axes(value)
    shared = regroup([heads], [key.shape[1], query.shape[1] // key.shape[1]])[0]
    for mine, its in ((batch, keys[0]), (shared, keys[1]), (unit, keys[3])):
        unify(mine, its, str(operator))
    for mine, its in zip(keys[:3], values[:3], strict=True):
        unify(mine, its, str(operator))
    use_all(heads, unit, values[3])
    recording.evidence.products.append(unit)
    first, *others = tensors_in(out)
    recording.put(first, [batch, heads, length, values[3]])
    for inner in (unit, values[3]):
        recording.tally.multiply(batch, heads, length, keys[2], inner)
    for tensor in others:
        recording.put_fixed(tensor, "statistics")
    for mask in tensors_in([*args, *kwargs.values()]):
        full = [batch, heads, length, keys[2]]
        for mine, its in zip(reversed(full), reversed(recording.axes(mask)), strict=False):
            if find(mine).size == find(its).size:
                unify(mine, its, str(operator))
