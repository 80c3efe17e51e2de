"""Following integers through the Python code of a model: what every explicit size must equal.

`x.view(b, -1, 8)` keeps working in a narrow model and mixes up the heads, so "it runs" proves nothing. Therefore every
size a model states is compared with the axis it lands on: an attribute is rewritten with that axis, a size computed
from a shape is checked, a literal freezes the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedwidth.plan.formulas import Binary, FollowedInt, Formula, Length, Number, atoms, formula_of
from fedwidth.plan.node import Node, Unaligned, find, freeze, is_fixed
from fedwidth.plan.restructure import cut
from fedwidth.plan.watching.recording import Recording

LEAVING = {"numpy", "tolist", "__array__", "__dlpack__"}
"""Functions after which nobody knows what becomes of the values."""


class SizeMode(TorchFunctionMode):
    """Sees every torch call of the model's Python code and notes what its integers state."""

    def __init__(
        self,
        recording: Recording,
        statements: Mapping[str, Callable[..., None]],
        uses: Mapping[str, Callable[..., None]],
    ) -> None:
        super().__init__()
        self.recording, self.statements, self.uses = recording, statements, uses

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            out = func(*args, **kwargs)
            return self.shape(args[0]) if func.__self__ is Tensor.shape else out
        if name == "size":
            out = func(*args, **kwargs)
            shape = self.shape(args[0])
            return shape[args[1] if len(args) > 1 else kwargs["dim"]] if isinstance(out, int) else shape
        if name == "stride":
            out = func(*args, **kwargs)
            strides = self.strides(args[0])
            return strides[args[1] if len(args) > 1 else kwargs["dim"]] if isinstance(out, int) else strides
        if name in ("numel", "nelement"):
            count = 1
            for size in self.shape(args[0]):
                count = count * size
            return count
        if name in LEAVING:
            for axis in self.recording.axes(args[0]):
                freeze(axis, "values leave PyTorch")
        statement = self.statements.get(name)
        if statement is None and (opened := _opened(func)) is not None:
            with self:
                return opened(*args, **kwargs)
        outer, self.recording.sized = self.recording.sized, statement is not None
        try:
            out = func(*args, **kwargs)
        finally:
            self.recording.sized = outer
        if statement is not None:
            with suppress(Unaligned):  # the operator's rule has frozen it
                statement(self, out, args, kwargs)
        if (use := self.uses.get(name)) is not None:
            use(self, args, kwargs)
        return out

    def shape(self, tensor: Tensor) -> torch.Size:
        """A tensor's shape in followed integers, where it may change."""
        axes = self.recording.shape(tensor)
        return torch.Size(
            int(find(axis).size)
            if is_fixed(axis)
            else FollowedInt(find(axis).size, Length(axis), self.recording.constraints)
            for axis in axes
        )

    def strides(self, tensor: Tensor) -> tuple[int, ...]:
        """A tensor's strides in followed integers, where they may change."""
        found = []
        for stride in tensor.stride():
            formula = self.stride_formula(tensor, stride)
            followed = any(isinstance(atom, Length) for atom in atoms(formula))
            found.append(FollowedInt(stride, formula, self.recording.constraints) if followed else stride)
        return tuple(found)

    def stride_formula(self, tensor: Tensor, stride: int) -> Formula:
        """What so long a step through the memory of a tensor is made of: dimensions that lie inside it."""
        formula: Formula = Number(1)
        axes, layout = self.recording.shape(tensor), zip(tensor.shape, tensor.stride(), strict=True)
        for axis, (size, step) in zip(axes, layout, strict=True):
            if not is_fixed(axis) and step < stride and stride % size == 0:
                formula, stride = Binary("*", formula, Length(axis)), stride // size
        return Binary("*", Number(stride), formula) if formula != Number(1) else Number(stride)

    def state(self, value: Any, axis: Node) -> None:
        """The code says that this axis has this size."""
        if not isinstance(value, int) or int(value) != find(axis).size:  # comparing a followed int is a statement
            return
        if isinstance(value, FollowedInt) or not is_fixed(axis):
            self.equate(formula_of(value), axis)

    def state_all(self, values: Any, axes: Sequence[Node]) -> None:
        """The same for several."""
        for value, axis in zip(values, axes, strict=False):
            self.state(value, axis)

    def equate(self, formula: Formula, axis: Node) -> None:
        """A formula gives the size of this axis."""
        self.recording.constraints.equate(formula, Length(axis))

    def border(self, value: Any, axis: Node) -> None:
        """The code cuts this axis at `value`, counted from the end if negative."""
        size = find(axis).size
        if not isinstance(value, int) or abs(value) > size or not int(value):
            return
        if value > 0:
            self.state(value, cut(axis, int(value))[0])
        elif isinstance(value, FollowedInt) or not is_fixed(axis):
            self.equate(Binary("-", Number(0), formula_of(value)), cut(axis, size + int(value))[1])


@cache
def _opened(func: Any) -> FunctionType | None:
    """A function of torch.nn.functional whose inner calls the mode can see; None for any other.

    Such functions hand themselves to an active mode as a whole, which would hide the views inside (of
    multi_head_attention_forward, for one); the copy does not.
    """
    checks = {"has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"}
    if not isinstance(func, FunctionType) or func.__module__ != "torch.nn.functional":
        return None
    if not checks & set(func.__code__.co_names):
        return None
    namespace = func.__globals__ | dict.fromkeys(checks, lambda *_: False)
    copy = FunctionType(func.__code__, namespace, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy
