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
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedwidth.plan.formulas import Binary, FollowedFloat, FollowedInt, Formula, Held, Length, Number, formula_of
from fedwidth.plan.node import Node, Unaligned, cut, find, freeze, is_fixed
from fedwidth.plan.recording import Recording

LEAVING = {"numpy", "tolist", "__array__", "__dlpack__"}
"""Functions after which nobody knows what becomes of the values."""
SPATIAL = {"kernel_size", "stride", "padding", "dilation", "output_padding"}
"""Attributes that are never widths: not worth following."""


def follow_attributes(model: nn.Module, recording: Recording) -> dict[Held, int]:
    """Replace every number held by a module by a followed one; gives the integers. The caller restores them."""
    held: dict[Held, int] = {}

    def followed(module: str, name: str, value: int, place: int | None = None) -> int:
        if value <= 1:
            return value
        attribute = Held(module, name, place)
        held[attribute] = value
        return FollowedInt(value, attribute, recording.constraints)

    for path, module in model.named_modules():
        for name, value in list(vars(module).items()):
            if name.startswith("_") or name in SPATIAL:
                continue
            if type(value) is float and value > 0 and not type(module).__module__.startswith("torch.nn."):
                vars(module)[name] = FollowedFloat(value, Held(path, name))
            elif type(value) is int:
                vars(module)[name] = followed(path, name, value)
            elif type(value) in (tuple, list, torch.Size) and all(type(item) is int for item in value[:9]):
                items = [followed(path, name, item, place) for place, item in enumerate(value[:8])]
                vars(module)[name] = type(value)([*items, *value[8:]])
    return held


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
