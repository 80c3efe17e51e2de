"""Units of adapters that a sub-model does not hold: folded into its frozen weights, so that it computes what the global
model does.

A client that trains some units of a rank still runs all of them. Those it does not train are constants, and the sum of
their products is a matrix of the shape of the weight: W + s B[:, outside] A[outside]. Adding it costs a device nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.errors import SelectionError
from fedwidth.plan.adapters import FREEZE, Adapter


def outside_units(adapter: Adapter, index: Index) -> Tensor:
    """The units of an adapter that an index does not keep."""
    size = index.plan.shapes[adapter.down][0]
    held, columns = index[adapter.down][0], index[adapter.up][1]
    if not torch.equal(held, columns):
        raise SelectionError(
            f"the index keeps other units of '{adapter.down}' than of '{adapter.up}': a unit of a rank is a row of the"
            " one and a column of the other, so methods that choose tensor by tensor cannot choose ranks"
        )
    kept = torch.zeros(size, dtype=torch.bool)
    kept[held] = True
    return torch.nonzero(~kept).flatten()


def fold(state: Mapping[str, Tensor], index: Index) -> dict[str, Tensor]:
    """The weights that units outside the index are folded into, in their full shapes; only those that change."""
    found = {}
    for adapter in index.plan.adapters:
        outside = outside_units(adapter, index)
        if adapter.outside != FREEZE or not len(outside):
            continue
        weight, (down, up) = state[adapter.weight], (state[name].detach() for name in (adapter.down, adapter.up))
        outside = outside.to(weight.device)
        # In double: a GPU may round what it multiplies in single precision (TF32).
        rows, columns = down.index_select(0, outside).double(), up.index_select(1, outside).double()
        change = adapter.product(columns, rows, tuple(weight.shape))
        found[adapter.weight] = weight.detach() + change.to(weight.dtype)
    return found
