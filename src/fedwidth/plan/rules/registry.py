"""Finding the rule of an operator.

A rule is a function `rule(recording, operator, output, *arguments)` that says what the output's axes are and which
axes of the inputs are the same. Rules are registered by the operator's name without its overload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedwidth.plan.node import Node, find, freeze, use
from fedwidth.plan.restructure import unify
from fedwidth.plan.watching.recording import Recording, tensors_in

Rule = Callable[..., None]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for the operators of these names: PyTorch's by their own, others as `namespace::name`."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


@dataclass(frozen=True)
class Handler:
    """How one operator is treated."""

    rule: Rule
    writes: tuple[int | str, ...] = ()
    """Arguments it writes into: positions, or names of keyword-only ones."""
    decompose: Callable[..., Any] | None = None
    """Without a rule of its own: the same in terms of simpler operators."""

    def places(self, args: tuple[Any, ...]) -> tuple[int | str, ...]:
        """The arguments it writes into in a call with these positional ones."""
        return tuple(place for place in self.writes if isinstance(place, str) or place < len(args))


@cache
def handler(operator: Any) -> Handler:
    """The treatment of an operator, looked up once."""
    schema = operator._schema
    namespace, _, name = schema.name.partition("::")
    writes: list[int | str] = [
        argument.name if argument.kwarg_only else place
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if "batch_norm" in name and not writes:
        writes = [3, 4]  # the running statistics; the schemas of older operators do not say so
    found = RULES.get(name if namespace == "aten" else schema.name)
    if found is None and torch.Tag.pointwise in operator.tags:
        found = elementwise
    decompose = None if found else _decomposition(operator)
    return Handler(found or unknown, tuple(writes), decompose)


def _decomposition(operator: Any) -> Callable[..., Any] | None:
    from torch._decomp import core_aten_decompositions  # a slow import that few models need

    table = core_aten_decompositions()
    if operator in table:
        return table[operator]  # type: ignore[no-any-return]
    return operator.decompose if operator._can_decompose() else None


@cache
def argument_names(operator: Any) -> tuple[str, ...]:
    """Names of an operator's arguments in order."""
    return tuple(argument.name for argument in operator._schema.arguments)


def unknown(recording: Recording, operator: Any, out: Any, *args: Any, **kwargs: Any) -> None:
    """The rule of operators without one."""
    inputs = [*tensors_in(args), *tensors_in(kwargs)]
    recording.meet_unknown(str(operator).removesuffix(".default"), inputs, tensors_in(out))


def use_all(*axes: Node) -> None:
    """Note that a computation read these axes."""
    for axis in axes:
        use(axis)


def freeze_all(axes: Iterable[Node], reason: str) -> None:
    """Forbid slicing any of these axes."""
    for axis in axes:
        freeze(axis, reason)


def broadcast(recording: Recording, tensors: Iterable[Tensor], shape: Sequence[int], where: Any) -> list[Node]:
    """Align tensors from the right, as elementwise operators do, and give the axes of the result."""
    result: list[Node | None] = [None] * len(shape)
    for tensor in tensors:
        axes = recording.axes(tensor)
        start = len(shape) - len(axes)
        for place, axis in enumerate(axes, start):
            if shape[place] == 1 or find(axis).size != shape[place]:
                continue
            mine = result[place]
            if mine is None:
                result[place] = axis
            else:
                unify(mine, axis, str(where))
    nodes = [Node(size, "broadcast") if node is None else node for size, node in zip(shape, result, strict=True)]
    for node in nodes:
        use(node)
    return nodes


def elementwise(recording: Recording, operator: Any, out: Any, *args: Any, **kwargs: Any) -> None:
    """Every output element depends on the input elements at its own place."""
    inputs = [*tensors_in(args), *tensors_in(kwargs)]
    for tensor in tensors_in(out):
        axes = broadcast(recording, inputs, tensor.shape, operator)
        if not recording.knows(tensor):
            recording.put(tensor, axes)
