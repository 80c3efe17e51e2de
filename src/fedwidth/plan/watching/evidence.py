"""What shows that a number in a model comes from a width: how the forward pass uses it.

A float attribute of 0.125 may be 64 ** -0.5 or a temperature. Its value does not tell, nor does its name. Its use does:
queries and keys are scaled by the root of the width they are multiplied over, embeddings by the root of their own
width, and a sum over units is divided by their number. The forward pass is watched for such uses; `scales` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedwidth.plan.formulas import FollowedFloat, Held
from fedwidth.plan.node import Node

PRODUCT_OF_ACTIVATIONS, SUM, EMBEDDING = "product of activations", "sum", "embedding"

PASSES_ON = {
    *("view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze", "alias"),
    *("detach", "clone", "contiguous", "_to_copy", "lift_fresh", "lift_fresh_copy", "select", "slice"),
}
"""Operators whose result holds the same values, or some of them."""


@dataclass(frozen=True)
class Origin:
    """How a tensor came about, and the axes that were summed over (or looked up)."""

    kind: str
    axes: tuple[Node, ...]


@dataclass(frozen=True)
class Scaling:
    """A tensor was multiplied by a number."""

    factor: float
    source: Held | str | None
    """The float attribute or the buffer that holds the number; None where it was computed in the forward pass."""
    sign: int
    """-1 where the tensor was divided by the number."""
    axes: tuple[Node, ...]
    """Of the tensor."""
    origin: Origin | None


class Evidence:
    """What the passes of one trace have shown."""

    def __init__(self) -> None:
        self.scalings: list[Scaling] = []
        self.products: list[Node] = []
        """Axes over which two activations were multiplied: the head size of attention."""
        self._activations: set[int] = set()
        self._origins: dict[int, Origin] = {}
        self._buffers: dict[int, tuple[str, float]] = {}

    def begin(self, inputs: Iterable[Tensor], buffers: dict[str, Tensor]) -> None:
        """A pass begins with these inputs, on a model with these buffers."""
        self._activations.update(map(id, inputs))
        for name, tensor in buffers.items():
            if tensor.dim() == 0 and tensor.is_floating_point() and not tensor.is_meta:
                self._buffers[id(tensor)] = name, float(tensor.detach())

    def end_pass(self) -> None:
        """A pass is over, and its tensors are gone."""
        for known in (self._activations, self._origins, self._buffers):
            known.clear()

    def is_activation(self, tensor: Tensor) -> bool:
        """Whether it was computed from the inputs (and is no weight)."""
        return id(tensor) in self._activations

    def multiplied(self, out: Tensor, left: Tensor, right: Tensor, inner: Node) -> None:
        """Two tensors were multiplied and summed over an axis."""
        if self.is_activation(left) and self.is_activation(right):
            self.products.append(inner)
            self._origins[id(out)] = Origin(PRODUCT_OF_ACTIVATIONS, (inner,))

    def summed(self, out: Tensor, axes: Sequence[Node]) -> None:
        """A tensor was summed over axes."""
        self._origins[id(out)] = Origin(SUM, tuple(axes))

    def embedded(self, out: Tensor, width: Node) -> None:
        """Rows of a table were looked up."""
        self._origins[id(out)] = Origin(EMBEDDING, (width,))

    def follow(self, operator: Any, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """An operator ran: what is computed from activations is one, and a view is what it was."""
        if any(map(self.is_activation, inputs)):
            self._activations.update(map(id, outputs))
        if inputs and operator._schema.name.removeprefix("aten::") in PASSES_ON:
            source = id(inputs[0])
            for tensor in outputs:
                if source in self._origins:
                    self._origins[id(tensor)] = self._origins[source]
                if source in self._buffers:
                    self._buffers[id(tensor)] = self._buffers[source]

    def origin(self, tensor: Tensor) -> Origin | None:
        """How a tensor came about, where that is known."""
        return self._origins.get(id(tensor))

    def scaled(self, tensor: Tensor, axes: Sequence[Node], number: Any, *, sign: int = 1) -> None:
        """A tensor with these axes was multiplied by a number (or divided by it, with sign -1)."""
        if isinstance(number, Tensor):
            if id(number) in self._buffers:
                name, value = self._buffers[id(number)]
                self._note(Scaling(value**sign, name, sign, tuple(axes), self.origin(tensor)))
        elif isinstance(number, FollowedFloat):
            sign *= number.exponent
            factor = number.full**sign
            self._note(Scaling(factor, number.attribute, sign, tuple(axes), self.origin(tensor)))
        elif isinstance(number, float) and number > 0:
            self._note(Scaling(number**sign, None, sign, tuple(axes), self.origin(tensor)))

    def scaled_product(self, number: float, inner: Node) -> None:
        """A product of activations over an axis was scaled by the operator that computed it."""
        source = number.attribute if isinstance(number, FollowedFloat) else None
        self._note(Scaling(float(number), source, 1, (), Origin(PRODUCT_OF_ACTIVATIONS, (inner,))))

    def _note(self, scaling: Scaling) -> None:
        if scaling.factor > 0 and scaling.factor != 1:
            self.scalings.append(scaling)
