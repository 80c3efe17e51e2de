"""Rules of operators that make tensors or copy them as they are."""

# ruff: noqa: ARG001 — all rules share one signature

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedwidth.plan.node import Node
from fedwidth.plan.rules.registry import broadcast, elementwise, rule
from fedwidth.plan.watching.recording import Recording, tensors_in


@rule(
    *("clone", "contiguous", "detach", "alias", "_to_copy", "lift_fresh", "lift_fresh_copy", "_conj"),
    *("native_dropout", "dropout", "bernoulli", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like"),
    *("randn_like", "_softmax", "_log_softmax", "softmax", "log_softmax", "_safe_softmax"),
)
def same_shape(recording: Recording, operator: Any, out: Any, source: Tensor, *args: Any, **kwargs: Any) -> None:
    """The result has the axes of its source (softmax: it does not matter in which order its units come)."""
    axes = recording.axes(source)
    for tensor in tensors_in(out):
        if not recording.knows(tensor):
            recording.put(tensor, axes)


@rule("zeros", "ones", "full", "new_zeros", "new_ones", "new_full")
def constant(recording: Recording, operator: Any, out: Tensor, *args: Any, **kwargs: Any) -> None:
    """One value repeated: as wide as what it meets."""
    recording.put(out, [Node(size) for size in out.shape])
    recording.constant(out)


@rule("empty", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "rand", "randn", "scalar_tensor")
def blank(recording: Recording, operator: Any, out: Tensor, *args: Any, **kwargs: Any) -> None:
    """Memory to be written, or noise: as wide as what it meets."""
    recording.put(out, [Node(size) for size in out.shape])


@rule("arange", "linspace", "logspace", "eye", "tril_indices", "triu_indices", "randint", "randperm")
def numbered(recording: Recording, operator: Any, out: Tensor, *args: Any, **kwargs: Any) -> None:
    """Values that depend on the position."""
    recording.put_fixed(out, "numbered positions")


@rule("copy_")
def copy_into(recording: Recording, operator: Any, out: Tensor, target: Tensor, source: Tensor, *args: Any) -> None:
    """Write one tensor over another."""
    broadcast(recording, [target, source], target.shape, operator)


@rule(
    *("fill_", "zero_", "uniform_", "normal_", "bernoulli_", "random_", "exponential_", "geometric_", "cauchy_"),
    *("log_normal_", "is_same_size", "sym_size", "sym_numel", "record_stream", "_assert_async", "_assert_scalar"),
    *("_assert_tensor_metadata",),
)
def nothing(recording: Recording, operator: Any, out: Any, *args: Any, **kwargs: Any) -> None:
    """Says nothing about axes, but reads."""
    for tensor in tensors_in(args):
        recording.axes(tensor)


@rule("polar", "complex", "normal")
def by_element(recording: Recording, operator: Any, out: Tensor, *args: Any, **kwargs: Any) -> None:
    """Elementwise, though PyTorch does not list it as such."""
    elementwise(recording, operator, out, *args, **kwargs)


@rule("_local_scalar_dense", "item", "equal")
def look(recording: Recording, operator: Any, out: Any, *args: Any, **kwargs: Any) -> None:
    """A value becomes a Python number, on which the code may branch."""
    nothing(recording, operator, out, *args, **kwargs)
    recording.looked = True
