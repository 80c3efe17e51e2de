"""What follows from constants in the code alone, such as the zeros with which a recurrence begins.

A weight that is multiplied with them has not met the units that it will be given: in a recurrence those that the next
step makes. Nothing ties the two where inputs end after one step, so that such units stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torch import Tensor

from fedwidth.plan.node import Node, leaves
from fedwidth.plan.watching.storage import storage_of


class Constants:
    """Which tensors of a pass, or which of their units, follow from constants alone, and which weights met them."""

    def __init__(self, axes_of: Callable[[Tensor], Sequence[Node]]) -> None:
        self._axes_of = axes_of
        self._whole: set[int] = set()
        self._parts: dict[int, set[Node]] = {}
        self._met: list[tuple[Node, int]] = []

    def begin(self, tensor: Tensor) -> None:
        """A tensor was made whose values the code says."""
        if storage := storage_of(tensor):
            self._whole.add(storage)

    def end(self, tensor: Tensor) -> None:
        """Something is written into it."""
        self._whole.discard(storage_of(tensor))
        self._parts.pop(storage_of(tensor), None)

    def end_pass(self) -> None:
        """A pass is over, and its tensors are gone."""
        self._whole.clear()
        self._parts.clear()

    def follow(self, out: Iterable[Tensor], given: Iterable[Tensor]) -> None:
        """Results of an operator that draws nothing: units that only constants among what it is given have are
        constants still. Numbers, tensors without dimensions, have no units.
        """
        sources = [tensor for tensor in given if tensor.dim()]
        found = [self._of(tensor) for tensor in sources]
        if not any(found):
            return
        others = {leaf for tensor, own in zip(sources, found, strict=True) for leaf in self._leaves(tensor) - own}
        parts = set().union(*found) - others
        for tensor in out:
            if all(storage_of(source) in self._whole for source in sources):
                self.begin(tensor)
            elif parts and (storage := storage_of(tensor)):
                self._parts.setdefault(storage, set()).update(parts)

    def meet(self, one: Tensor, other: Tensor) -> None:
        """Units of both were multiplied."""
        for tensor, weight in ((one, other), (other, one)):
            if found := self._of(tensor):
                self._met += [(leaf, storage_of(weight)) for leaf in found & self._leaves(weight)]

    def alone(self, axes: Mapping[Tensor, Sequence[Node]]) -> Iterator[Node]:
        """Units whose every tensor among these weights met a constant: what they are given else has units that a
        further tensor made, which met none.
        """
        met: dict[Node, set[int]] = {}
        for node, weight in self._met:
            for leaf in leaves(node):
                met.setdefault(leaf, set()).add(weight)
        for leaf, weights in met.items():
            having = {storage_of(tensor) for tensor, own in axes.items() if any(leaf in leaves(axis) for axis in own)}
            if having and having <= weights:
                yield leaf

    def _of(self, tensor: Tensor) -> set[Node]:
        """The units of a tensor that follow from constants."""
        storage = storage_of(tensor)
        if storage in self._whole:
            return self._leaves(tensor)
        parts = self._parts.get(storage)
        return {leaf for node in parts for leaf in leaves(node)} & self._leaves(tensor) if parts else set()

    def _leaves(self, tensor: Tensor) -> set[Node]:
        return {leaf for axis in self._axes_of(tensor) for leaf in leaves(axis)}
