"""The workspace of a kernel: memory it takes beside its tensors, which these do not show; of an LSTM on a processor.

oneDNN trains an LSTM layer (T steps, N samples, I inputs, H hidden) in one call, with a workspace of

    N (6 (T + 1) row(max(I, H)) + H (9 T + 4))    numbers

(a row is filled up to a multiple of 16 that is none of 256), whose size a tensor without values does not know. The
forward pass fills the gates and one state of every step; the rest is touched, and so becomes memory, in the backward
pass, beside copies of the weights. The formula was found by asking oneDNN 3.12 (PyTorch 2.13) for layers of many sizes,
and is within 3 % of its answers from a megabyte on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

GATES = 4
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
    name = getattr(getattr(operator, "overloadpacket", None), "__name__", "")
    if name not in (_FORWARD, _BACKWARD):
        return NOTHING
    inputs, weights = args[0], args[1:5]
    steps, samples, _ = inputs.shape
    hidden, size = weights[0].shape[0] // GATES, inputs.element_size()
    kept = size * samples * (GATES * steps * hidden + (steps + 1) * row(hidden))
    if name == _FORWARD:
        return Workspace(kept=kept)
    copies = 2 * sum(w.numel() * w.element_size() for w in weights if isinstance(w, Tensor))
    return Workspace(passing=lstm_workspace(inputs.shape, hidden) * size - kept + copies)


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
