"""Sums that travel between the levels of a tree of servers: an edge adds up its devices and sends one sum a part.

A `CohortSum` is closed under merging, so the root needs no more of an edge than its means and weights: as many bytes as
one device of each width sends, however many devices the edge has. Nothing here is Flower's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.core.index import Index
from fedwidth.core.running_mean import Weight
from fedwidth.errors import UpdateError

Packed = tuple[str, int, dict[str, Tensor], dict[str, Weight]]
"""The key of an index, how many clients were added up, and by the name of a tensor their mean and weight."""


def pack_sums(sums: Sequence[CohortSum]) -> list[Packed]:
    """Sums as an edge sends them."""
    return [(found.index.key, found.clients, dict(found.mean), dict(found.weight)) for found in sums]


def merge_edges(edges: Sequence[Sequence[Packed]], indexes: Mapping[str, Index]) -> list[CohortSum]:
    """The sums of all edges, in their order; `indexes` are the round's, by key, and no other is taken."""
    merged: dict[str, CohortSum] = {}
    for packed in edges:
        for key, clients, mean, weight in packed:
            if key not in indexes:
                raise UpdateError("an edge sent a sum of an index that is none of this round's")
            found = CohortSum.of(indexes[key], mean, weight, clients)
            merged.setdefault(key, CohortSum(indexes[key])).merge(found)
    return list(merged.values())
