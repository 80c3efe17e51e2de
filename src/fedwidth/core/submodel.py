"""Sub-models: `extract` cuts one out of the global state, `merge` puts trained ones back.

An inverse pair: `extract(merge(state, [(sub, index, w)], plan), plan, index)` is `sub` bit for bit, for any weight and
dtype, and `merge(state, [(extract(state, plan, index), index, w)], plan)` is `state` bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedwidth.core.folding import fold
from fedwidth.core.index import Index
from fedwidth.errors import SelectionError
from fedwidth.plan.plan import Plan, check_plan
from fedwidth.plan.trace import tensors_of

State = Mapping[str, Tensor]


class SubState(dict[str, Tensor]):
    """A sub-model's tensors, and the key of the index it was cut by (so that it cannot be merged elsewhere)."""

    def __init__(self, tensors: Mapping[str, Tensor], key: str) -> None:
        super().__init__(tensors)
        self.key = key


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """A detached copy of every parameter and buffer, tied names and non-persistent buffers included."""
    found, tied = tensors_of(model)
    copies = {name: tensor.detach().clone() for name, tensor in found.items() if name not in tied}
    return {name: copies[tied.get(name, name)] for name in found}


def with_ties(state: State, plan: Plan) -> dict[str, Tensor]:
    """The same state, in which every tied name has the tensor of the name it is tied to."""
    return dict(state) | {name: state[first] for name, first in plan.tied.items() if name in state}


def extract(state: State, plan: Plan, index: Index) -> SubState:
    """The sub-model at `index`: new tensors, parameters and buffers, that share no memory with `state`."""
    check_index(plan, index)
    plan.check_state(state)
    cut: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, tensor in folded(state, index).items():
            first = plan.tied.get(name, name)
            if first not in cut:
                cut[first] = take(tensor, index, name)
    return SubState({name: cut[plan.tied.get(name, name)] for name in state}, index.key)


def folded(state: State, index: Index) -> State:
    """The state that a sub-model is cut out of: units of adapters that it does not hold are in the frozen weights."""
    if not index.plan.adapters:
        return state
    changed = fold(state, index)
    return {name: changed.get(index.plan.tied.get(name, name), tensor) for name, tensor in state.items()}


def take(tensor: Tensor, index: Index, name: str) -> Tensor:
    """A copy of the positions that `index` keeps of a full tensor (or of one that broadcasts over it)."""
    sliced = index.sliced(name)
    if not sliced:
        return tensor.clone(memory_format=torch.contiguous_format)
    pieces = index.pieces(name)
    if pieces is None:
        kept = index.on(name, tensor.device)
        for dim in sliced:  # dimension by dimension: whole rows first, which stream from memory
            tensor = tensor.index_select(dim, kept[dim])
        return tensor
    if len(pieces) == 1:
        return tensor[pieces[0][0]].clone(memory_format=torch.contiguous_format)
    narrow_shape = index.shapes[name]
    out = tensor.new_empty([narrow_shape[d] if d in sliced else n for d, n in enumerate(tensor.shape)])
    for full, narrow in pieces:
        out[narrow] = tensor[full]
    return out


def view(tensor: Tensor, index: Index, name: str) -> Tensor:
    """The positions that `index` keeps of a full tensor, to be read: no copy where they lie side by side."""
    pieces = index.pieces(name)
    return tensor[pieces[0][0]] if pieces is not None and len(pieces) == 1 else take(tensor, index, name)


def put(tensor: Tensor, value: Tensor, index: Index, name: str) -> None:
    """Write a narrow tensor back to the positions it was taken from, in place."""
    pieces = index.pieces(name)
    if pieces is None:
        _scatter(tensor, value, index.on(name, tensor.device), index.sliced(name))
    else:
        for full, narrow in pieces:
            tensor[full] = value[narrow]


def _scatter(tensor: Tensor, value: Tensor, kept: tuple[Tensor, ...], dims: tuple[int, ...]) -> None:
    """Write to positions along several dimensions at once; one dimension at a time would move whole rows twice."""
    first, last = dims[0], dims[-1]
    positions = kept[first]
    for dim in range(first + 1, last + 1):
        size = tensor.shape[dim]  # not the plan's: a tensor that broadcasts has 1 where nothing is sliced
        here = kept[dim] if dim in dims else torch.arange(size, device=tensor.device)
        positions = (positions[:, None] * size + here).flatten()
    flat = tensor.flatten(first, last)
    flat.index_copy_(first, positions, value.flatten(first, last))
    if not tensor.is_contiguous():  # then `flat` may be a copy
        tensor.copy_(flat.view(tensor.shape))


def check_index(plan: Plan, index: Index) -> None:
    """Raise `SelectionError` unless the index was made for this plan."""
    check_plan(plan)
    if not isinstance(index, Index):
        raise SelectionError(f"expected an Index from method.select or Index.of_units, not {type(index).__name__}")
    if not index.fits(plan):
        raise SelectionError("the index was made for another plan; select again with this one")
