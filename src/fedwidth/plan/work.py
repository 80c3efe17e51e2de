"""What a model multiplies and what training keeps of it, as products of axis sizes.

One pass at full width is watched; what a narrow model needs then follows by arithmetic, for any width.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedwidth.plan.axis import Axis, groups_of, kept
from fedwidth.plan.node import Node
from fedwidth.plan.watching.storage import storage_of

Terms = tuple[tuple[int, tuple[Axis, ...]], ...]
"""A sum of products: a whole number times the sizes of axes."""


@dataclass(frozen=True)
class Work:
    """What one pass of so many samples takes, at any width."""

    products: Terms = ()
    """Multiply-adds of matrix products and convolutions in a forward pass."""
    saved: Terms = ()
    """Bytes that training keeps for the backward pass, parameters and buffers apart."""
    weights: Terms = ()
    """Bytes of the parameters, tied ones once."""
    buffers: Terms = ()
    """Bytes of the buffers."""
    samples: int = 1
    """How many samples the multiply-adds are for."""
    trained_samples: int = 1
    """How many samples the bytes that training keeps are for."""

    def macs(self, counts: Mapping[str, int]) -> float:
        """Multiply-adds for one sample when group g keeps counts[g] units."""
        return _total(self.products, counts) / self.samples

    def memory(self, counts: Mapping[str, int], *, batch: int, moments: int) -> float:
        """Bytes to train: weights, gradients, the optimiser's moments, buffers, and what a batch leaves behind."""
        states = (2 + moments) * _total(self.weights, counts) + _total(self.buffers, counts)
        return states + _total(self.saved, counts) * batch / self.trained_samples


def _total(terms: Terms, counts: Mapping[str, int]) -> int:
    return sum(times * math.prod(kept(axis, counts) for axis in axes) for times, axes in terms)


def terms(products: Iterable[tuple[int, Iterable[Axis]]]) -> Terms:
    """A sum of products in short: what no group changes is multiplied out, and equal products are added up."""
    found: Counter[tuple[Axis, ...]] = Counter()
    for times, axes in products:
        changing = []
        for axis in axes:
            if groups_of(axis):
                changing.append(axis)
            else:
                times *= axis.size
        found[tuple(sorted(changing, key=repr))] += times
    return tuple((times, axes) for axes, times in found.items())


@dataclass
class Tally:
    """What the passes of a trace have shown of it so far."""

    products: list[tuple[Node, ...]] = field(default_factory=list)
    saved: list[tuple[int, tuple[Node, ...]]] = field(default_factory=list)
    counting: bool = False
    """Whether the pass under way counts multiply-adds."""
    _storages: dict[int, tuple[int, tuple[Node, ...]]] | None = None

    def multiply(self, *axes: Node) -> None:
        """So many numbers as these axes have together were multiplied and added."""
        if self.counting:
            self.products.append(axes)

    def lay(self, tensor: Tensor, axes: Iterable[Node]) -> None:
        """A tensor was made, and its memory has these axes (unless it is a view of memory that is known)."""
        if self._storages is not None and (storage := storage_of(tensor)):
            self._storages.setdefault(storage, (tensor.element_size(), tuple(axes)))

    @contextmanager
    def keeping(self, own: Iterable[Tensor]) -> Iterator[None]:
        """Note what autograd keeps of the pass in the body; the model's own tensors do not count."""
        known = {storage_of(tensor) for tensor in own}
        kept_storages: dict[int, Tensor] = {}  # holds the tensors, so that no memory is freed and used again
        self._storages = {}

        def keep(tensor: Tensor) -> Tensor:
            kept_storages.setdefault(storage_of(tensor), tensor)
            return tensor

        try:
            with saved_tensors_hooks(keep, lambda tensor: tensor):
                yield
            self.saved = [
                self._storages[storage]
                for storage in kept_storages
                if storage not in known and storage in self._storages
            ]
        finally:
            self._storages = None

    def work(
        self, axis: Callable[[Node], Axis], weights: Terms, buffers: Terms, samples: int, trained_samples: int
    ) -> Work:
        """The finished account; `axis` gives the plan's axis for a node."""
        return Work(
            products=terms((1, map(axis, nodes)) for nodes in self.products),
            saved=terms((size, map(axis, nodes)) for size, nodes in self.saved),
            weights=weights,
            buffers=buffers,
            samples=samples,
            trained_samples=trained_samples,
        )
