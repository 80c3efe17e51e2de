"""What kernels of a processor take beside their tensors, which do not show it.

An element-wise operation on tensors in half and in single precision, as where autocast's branches are added up, makes
copies of the former in single precision for as long as it lasts.

A product of matrices in half precision is computed by a program that oneDNN writes for its shapes and keeps: 0.55 to
0.65 MB, whatever the sizes (PyTorch 2.13, a processor with AVX512-BF16). In single precision there is none, and those
of convolutions take at most a third of it, the same in either precision.

oneDNN trains an LSTM layer (T steps, N samples, I inputs, H hidden) in one call, with a workspace of

    N (6 (T + 1) row(max(I, H)) + H (9 T + 4))    numbers

(a row is filled up to a multiple of 16 that is none of 256), whose size a tensor without values does not know. The
forward pass fills the gates and one state of every step; the rest is touched, and so becomes memory, in the backward
pass, beside copies of the weights. The formula was found by asking oneDNN 3.12 (PyTorch 2.13) for layers of many sizes,
and is within 3 % of its answers from a megabyte on. In half precision numbers have two bytes, but for a row of every
step: what the backward pass of four layers takes was found within 4 % in that way.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

PROGRAM = 600_000
"""Bytes of the program of a product in half precision."""
LIBRARY = 6_000_000
"""Bytes of PyTorch's own code that are read from disk once a process computes in half precision: 3 to 10 MB."""
GATES = 4
SINGLE = 4
"""Bytes of a number in single precision."""
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
"""What they multiply are their last two arguments."""
_SMALL = 16**3
"""Multiply-adds up to which a product needs no program."""
_FORWARD, _BACKWARD = "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"


class Workspace(NamedTuple):
    """Bytes that a call takes beside the tensors it makes."""

    kept: int = 0
    """As long as the last of the tensors it made: of a forward pass, its workspace."""
    passing: int = 0
    """While it lasts."""


NOTHING = Workspace()


def workspace_of(operator: Any, args: Sequence[Any]) -> Workspace:
    """What a call of an operator takes beside its tensors; nothing that is known, for most."""
    if torch.Tag.pointwise in getattr(operator, "tags", ()):
        return Workspace(passing=_converted(args))
    name = _name(operator)
    if name not in (_FORWARD, _BACKWARD):
        return NOTHING
    inputs, weights = args[0], args[1:5]
    steps, samples, _ = inputs.shape
    hidden, size = weights[0].shape[0] // GATES, inputs.element_size()
    kept = size * samples * (GATES * steps * hidden + (steps + 1) * row(hidden))
    if name == _FORWARD:
        return Workspace(kept=kept)
    copies = 2 * sum(w.numel() * w.element_size() for w in weights if isinstance(w, Tensor))
    cells = samples * (steps + 1) * row(max(inputs.shape[-1], hidden)) * (SINGLE - size)
    return Workspace(passing=lstm_workspace(inputs.shape, hidden) * size + cells - kept + copies)


def program_of(operator: Any, args: Sequence[Any]) -> Hashable | None:
    """What tells the program of a call from others, or None where the call needs none."""
    name = _name(operator)
    if name not in _PRODUCTS:
        return None
    left, right = args[-2:]
    if left.dtype != torch.bfloat16 or left.numel() * right.shape[-1] <= _SMALL:
        return None
    return name, *((tuple(tensor.shape), tensor.stride()) for tensor in (left, right))


def _name(operator: Any) -> str:
    return getattr(getattr(operator, "overloadpacket", None), "__name__", "")


def _converted(args: Sequence[Any]) -> int:
    """Bytes of the copies in single precision that a call with tensors of both precisions makes of the others."""
    floats = [x for x in args if isinstance(x, Tensor) and x.is_floating_point() and x.dim()]  # one number has no copy
    widest = max((x.element_size() for x in floats), default=0)
    return sum(x.numel() * widest for x in floats if x.element_size() < widest)


def lstm_workspace(shape: torch.Size, hidden: int) -> int:
    """Numbers in the workspace of an LSTM layer with inputs of a shape [steps, samples, inputs].

    >>> lstm_workspace(torch.Size((4, 128, 256)), 32)
    1208320
    """
    steps, samples, inputs = shape
    return samples * (6 * (steps + 1) * row(max(inputs, hidden)) + hidden * (9 * steps + 4))


def row(length: int) -> int:
    """How many numbers a row of so many takes there.

    >>> row(300), row(64), row(512)
    (304, 64, 528)
    """
    filled = -(-length // 16) * 16
    return filled + 16 if filled % 256 == 0 else filled
