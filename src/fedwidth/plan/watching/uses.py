"""What calls of torch functions say that the operators inside them need not show.

A tensor that is scaled by a number is evidence of where the number comes from. A recurrent layer reads the units it
gives, also where the example inputs end after one step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fedwidth.plan.formulas import FollowedInt
from fedwidth.plan.node import Node, Unaligned, find, freeze
from fedwidth.plan.restructure import cut, unify
from fedwidth.plan.watching.evidence import SUM
from fedwidth.plan.watching.follow import SizeMode

Use = Callable[[SizeMode, tuple[Any, ...], dict[str, Any]], None]
USES: dict[str, Use] = {}
LSTM_GATES = 4
"""The most gates that a recurrent layer of PyTorch has."""


def uses(*names: str) -> Callable[[Use], Use]:
    """Register what a call of a torch function says."""

    def register(function: Use) -> Use:
        USES.update(dict.fromkeys(names, function))
        return function

    return register


@uses("mul", "mul_", "multiply", "multiply_")
def _multiply(mode: SizeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    first, second = args[0], args[1] if len(args) > 1 else kwargs.get("other")
    for tensor, number in ((first, second), (second, first)):
        if isinstance(tensor, Tensor) and tensor.dim():
            mode.recording.evidence.scaled(tensor, mode.recording.shape(tensor), number)


@uses("div", "div_", "divide", "divide_", "true_divide", "true_divide_")
def _divide(mode: SizeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    tensor, number = args[0], args[1] if len(args) > 1 else kwargs.get("other")
    if not isinstance(tensor, Tensor):
        return
    evidence = mode.recording.evidence
    evidence.scaled(tensor, mode.recording.shape(tensor), number, sign=-1)
    origin = evidence.origin(tensor)
    if isinstance(number, FollowedInt) and origin is not None and origin.kind == SUM:
        for axis in origin.axes:
            if find(axis).size == int(number):  # the mean over this axis
                mode.state(number, axis)


@uses("baddbmm", "baddbmm_", "addbmm", "addmm", "addmm_")
def _add_product(mode: SizeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    left, right = (args[n] if len(args) > n else kwargs.get(f"batch{n}", kwargs.get(f"mat{n}")) for n in (1, 2))
    number = kwargs.get("alpha")
    evidence = mode.recording.evidence
    if isinstance(number, float) and isinstance(left, Tensor) and isinstance(right, Tensor):
        if not (evidence.is_activation(left) and evidence.is_activation(right)):
            return
        evidence.scaled_product(number, mode.recording.shape(left)[-1])


@uses("scaled_dot_product_attention")
def _attention(mode: SizeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    number, query = kwargs.get("scale"), args[0] if args else kwargs["query"]
    if isinstance(number, float):
        mode.recording.evidence.scaled_product(number, mode.recording.shape(query)[-1])


@uses("lstm", "gru", "rnn_tanh", "rnn_relu")
def _layers(mode: SizeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The weights are the last list: for each layer and direction those of inputs, state and, if any, projection."""
    weights = kwargs.get("params") or [arg for arg in args if isinstance(arg, (list, tuple))][-1]
    matrices = iter([mode.recording.axes(weight) for weight in weights if weight.dim() > 1])
    for _ in matrices:
        gates, state = next(matrices)
        projected = find(gates).size > LSTM_GATES * find(state).size
        _feed_back(next(matrices)[0] if projected else gates, state)


@uses("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def _cell(mode: SizeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _feed_back(*mode.recording.axes(args[3] if len(args) > 3 else kwargs["w_hh"]))


def _feed_back(given: Node, state: Node) -> None:
    """The units that are given, once for each gate, are those of the state that the next step reads."""
    try:
        while find(given).size:
            gate, given = cut(given, find(state).size)
            unify(gate, state, "a recurrent layer")
    except Unaligned:
        for axis in (given, state):
            freeze(axis, "units do not line up in a recurrent layer")
