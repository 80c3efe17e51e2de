"""Rules of operators that normalise."""

# ruff: noqa: ARG001 — all rules share one signature

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from fedwidth.plan.node import Node, find, use
from fedwidth.plan.restructure import regroup, unify
from fedwidth.plan.rules.registry import rule, use_all
from fedwidth.plan.watching.recording import Recording, tensors_in


def _weigh(recording: Recording, out: Any, source: Tensor, weights: Iterable[Tensor]) -> None:
    """What a norm gives of constants follows from them and its own weights, which meet nothing else."""
    recording.constants.follow(tensors_in(out), [source])
    for weight in weights:
        recording.constants.meet(source, weight)


@rule("native_layer_norm", "_fused_rms_norm", "_fused_rms_norm_")
def layer_norm(
    recording: Recording, operator: Any, out: Sequence[Any], source: Tensor, shape: Sequence[int], *args: Any
) -> None:
    """Normalise over the last dimensions."""
    axes = recording.axes(source)
    normed = axes[-len(shape) :]
    for tensor in tensors_in(args):
        for mine, its in zip(normed, recording.axes(tensor), strict=True):
            unify(mine, its, str(operator))
    use_all(*normed)
    for tensor in tensors_in(out):
        fits = zip(axes, tensor.shape, strict=True)
        recording.put(tensor, [a if find(a).size == n else Node(n) for a, n in fits])
    _weigh(recording, out, source, tensors_in(args))


@rule("native_group_norm")
def group_norm(
    recording: Recording, operator: Any, out: Sequence[Tensor], source: Tensor, weight: Any, bias: Any, *args: Any
) -> None:
    """Normalise within each of some groups of channels."""
    axes, groups = recording.axes(source), args[3]
    regroup([axes[1]], [groups, source.shape[1] // groups])
    for tensor in tensors_in((weight, bias)):
        unify(recording.axes(tensor)[0], axes[1], str(operator))
    use(axes[1])
    recording.put(out[0], axes)
    for tensor in out[1:]:
        recording.put_fixed(tensor, "statistics")
    _weigh(recording, out, source, tensors_in((weight, bias)))


@rule(
    *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "cudnn_batch_norm"),
    *("_native_batch_norm_legit_functional", "_batch_norm_with_update", "_batch_norm_no_update"),
    *("_batch_norm_with_update_functional", "miopen_batch_norm", "batch_norm"),
)
def batch_norm(recording: Recording, operator: Any, out: Any, source: Tensor, *args: Any, **kwargs: Any) -> None:
    """Normalise each channel."""
    axes = recording.axes(source)
    for tensor in tensors_in(args):
        unify(recording.axes(tensor)[0], axes[1], str(operator))
    use(axes[1])
    first, *others = tensors_in(out)
    recording.put(first, axes)
    for tensor in others:
        if recording.knows(tensor):
            continue
        if tensor.shape == source.shape[1:2]:
            recording.put(tensor, axes[1:2])
        else:
            recording.put_fixed(tensor, "statistics")
    _weigh(recording, out, source, tensors_in(args))
