"""One vector instead of a hundred tensors: flat states, flat sub-models, and the gather that joins them.

Choosing, cutting out and averaging sub-models tensor by tensor costs a thousand small kernel launches a round, more
than the training itself on a fast GPU. Here the global state is one vector theta[N]; a sub-model of one size is one
vector sub[n], and which of the N positions it holds follows from a small table of kept positions:

    positions[e] = constant[e] + table[pointer_0[e]] + table[pointer_1[e]] + …   for every element e of the sub-model

constant and pointers depend only on the size (made once); the table has a few thousand entries and is made anew when
the index changes. So a cut is `theta[positions]`, whatever the model.

The gaps between tensors (`tensor_layout`) of a sub-model all point at one spare element at the end of theta.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from fedwidth.core.index import Index
from fedwidth.engines.flat.tensor_layout import ALIGNED, TensorLayout, aligned, offsets_of
from fedwidth.plan.axis import tiling
from fedwidth.plan.plan import Plan


class FlatState(dict[str, Tensor]):
    """A state whose floating-point tensors are views of one vector, `flat`."""

    def __init__(self, flat: Tensor, layout: Layout, others: Mapping[str, Tensor]) -> None:
        super().__init__({**layout.views(flat), **others})
        self.flat = flat
        self.others = dict(others)
        for name, first in layout.plan.tied.items():
            if first in self:
                self[name] = self[first]


class Layout:
    """Where each floating-point tensor of the full state lies in its vector: in the plan's order, tied tensors once."""

    def __init__(self, plan: Plan, state: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self.plan, self.dtype = plan, dtype
        # In the plan's order, not the state's: a state read from a checkpoint has another, and sums would too.
        own = [name for name in plan.shapes if name in state and name not in plan.tied]
        self.names = [name for name in own if state[name].dtype == dtype]
        self.others = [name for name in own if state[name].dtype != dtype]
        sizes = [math.prod(plan.shapes[n]) for n in self.names]
        *offsets, end = offsets_of(map(aligned, sizes))
        self.offsets = dict(zip(self.names, offsets, strict=True))
        self.size = end + ALIGNED
        self.spare = end
        """The element that the gaps of sub-models point at."""

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The full tensors as views of a vector."""
        shapes = self.plan.shapes
        return {n: flat[self.offsets[n] : self.offsets[n] + math.prod(shapes[n])].view(shapes[n]) for n in self.names}

    def vector(self, tensors: Mapping[str, Tensor], device: torch.device) -> Tensor:
        """Some of the full tensors as one vector, with 0 for those that are missing."""
        flat = torch.zeros(self.size, dtype=self.dtype, device=device)
        views = self.views(flat)
        for name in (name for name in tensors if name in views):
            views[name].copy_(tensors[name])
        return flat

    def flatten(self, state: Mapping[str, Tensor]) -> FlatState:
        """The state as one vector; the state itself if it is one already."""
        if isinstance(state, FlatState):
            return state
        device = next((state[n].device for n in self.names), None)
        flat = torch.zeros(self.size, dtype=self.dtype, device=device)
        torch._foreach_copy_(list(self.views(flat).values()), [state[n] for n in self.names])
        return FlatState(flat, self, {n: state[n] for n in self.others})


class SubLayout(TensorLayout):
    """Where each tensor of the sub-models of one size lies in their vectors, and how these come out of the full one.

    The gather costs the same in any order, so channels may as well lie last.
    """

    def __init__(self, layout: Layout, index: Index, device: torch.device, *, channels_last: bool = True) -> None:
        super().__init__({n: index.shapes[n] for n in layout.names}, layout.dtype, channels_last=channels_last)
        self.layout = layout
        self.sliced = {n: index.sliced(n) for n in layout.names}
        self.counts = index.counts
        axes = dict(layout.plan.label_axes)
        self._class_axes = {name: axes[name] for name in layout.names if name in axes}
        self._make_gather(device)

    @cached_property
    def classes(self) -> Tensor:
        """The class of each labelled element: those of the tensors with a class axis, in order, without gaps.

        That is the classifier, a few thousand elements among millions, and the vocabulary a language model reads.
        """
        sizes = [math.prod(self.shapes[name]) for name in self._class_axes]
        found = torch.empty(sum(sizes), dtype=torch.long)
        for name, view in self.labelled_views(found).items():
            dim = self._class_axes[name]
            view.copy_(torch.arange(view.shape[dim]).view([-1 if d == dim else 1 for d in range(view.dim())]))
        return copy_to_device(found, self.constant.device)

    def take_labelled(self, flat: Tensor) -> Tensor:
        """A copy of the labelled elements of a sub-model's vector."""
        return torch.cat([flat[:0], *self.labelled_parts(flat)])

    def put_labelled(self, flat: Tensor, values: Tensor) -> None:
        """The inverse of `take_labelled`, in place."""
        for part, value in zip(self.labelled_parts(flat), self.labelled_parts_of(values), strict=True):
            part.copy_(value)

    def labelled_parts(self, flat: Tensor) -> list[Tensor]:
        """The labelled elements of a sub-model's vector as views, tensor by tensor."""
        starts = {name: self.offsets[name] for name in self._class_axes}
        return [flat[start : start + math.prod(self.shapes[name])] for name, start in starts.items()]

    def other_parts(self, flat: Tensor) -> list[Tensor]:
        """The elements of a sub-model's vector that are not labelled, as views."""
        starts = [self.offsets[name] for name in self._class_axes]
        ends = [self.offsets[name] + math.prod(self.shapes[name]) for name in self._class_axes]
        return [flat[end:start] for end, start in zip([0, *ends], [*starts, self.size], strict=True) if end < start]

    def labelled_parts_of(self, values: Tensor) -> Sequence[Tensor]:
        """What `take_labelled` gives, split tensor by tensor like `labelled_parts`."""
        return torch.split(values, [math.prod(self.shapes[name]) for name in self._class_axes])

    def labelled_views(self, values: Tensor) -> dict[str, Tensor]:
        """The narrow tensors with a class axis as views of what `take_labelled` gives."""
        parts = zip(self._class_axes, self.labelled_parts_of(values), strict=True)
        return {name: self.view(name, part) for name, part in parts}

    def positions(self, index: Index) -> Tensor:
        """The position in the full vector of every element of the sub-model at an index."""
        return self.positions_of([index])[0]

    def positions_of(self, indexes: Sequence[Index]) -> Tensor:
        """The positions of the sub-models at several indexes of this size: [indexes, n]."""
        result = self.constant.expand(len(indexes), self.size)
        if self.sliced_axes:
            kept = [torch.cat([index[name][dim] for name, dim in self.sliced_axes]) for index in indexes]
            tables = copy_to_device(functional.pad(torch.stack(kept) * self.strides, (0, 1)), result.device)
            for pointer in self.pointers:
                result = result + tables.index_select(1, pointer)
        return result

    @cached_property
    def blocks(self) -> list[str]:
        """The parameters of which the sub-model holds a block."""
        plan = self.layout.plan
        return [name for name in self.layout.names if self.sliced[name] and name in plan.parameters]

    @cached_property
    def repeats(self) -> Tensor:
        """For every element of the full vector the element of the sub-model's that it repeats, when the sub-model's
        block of each tensor is laid out over all of it; `size` where there is no such block."""
        layout, device = self.layout, self.constant.device
        found = torch.full((layout.size,), self.size, dtype=torch.int32, device=device)
        own = self.views(torch.arange(self.size, dtype=torch.int32, device=device))
        whole = layout.views(found)
        for name in self.blocks:
            part = own[name]
            for dim in self.sliced[name]:
                part = part.index_select(dim, tiling(layout.plan.axes[name][dim], self.counts).to(device))
            whole[name].copy_(part)
        return found

    def labels(self, classes: int) -> Tensor:
        """The class each element belongs to, and `classes` for those that belong to none."""
        found = torch.full_like(self.constant, classes)
        self.put_labelled(found, self.classes)
        return found

    def _make_gather(self, device: torch.device) -> None:
        """Make the constant and the pointers that `positions_of` adds up."""
        full, layout = self.layout.plan.shapes, self.layout
        self.sliced_axes = [(n, dim) for n in layout.names for dim in self.sliced[n]]
        lengths = [self.shapes[n][dim] for n, dim in self.sliced_axes]
        *firsts, nowhere = offsets_of(lengths)  # the table's last entry is 0, for elements with fewer sliced dimensions
        starts = dict(zip(self.sliced_axes, firsts, strict=True))
        strides = [_stride(full[n], dim) for n, dim in self.sliced_axes]
        each = torch.tensor(lengths, dtype=torch.long)
        self.strides = torch.repeat_interleave(torch.tensor(strides, dtype=torch.long), each)
        constant = torch.full((self.size,), layout.spare)
        most = max((len(dims) for dims in self.sliced.values()), default=0)
        pointers = [torch.full((self.size,), nowhere) for _ in range(most)]
        constant_views, pointer_views = self.views(constant), [self.views(p) for p in pointers]
        for name, shape in self.shapes.items():
            constant_views[name].fill_(layout.offsets[name])
            for dim, length in enumerate(shape):
                along = torch.arange(length).view([-1 if d == dim else 1 for d in range(len(shape))])
                if dim in self.sliced[name]:
                    number = self.sliced[name].index(dim)
                    pointer_views[number][name].copy_((along + starts[name, dim]).expand(shape))
                else:
                    constant_views[name].add_(along * _stride(full[name], dim))
        self.constant = constant.to(device)
        self.pointers = [pointer.to(device) for pointer in pointers]


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A processor's tensor on the device, without waiting: on a GPU that trains, a plain copy would take its turn."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def cut_sent(value: Mapping[str, Tensor] | float, layout: Layout, positions: Tensor) -> Tensor:
    """What a client is sent beside its sub-model, as a vector like it or as one number."""
    if isinstance(value, Mapping):
        return layout.vector(value, positions.device).index_select(0, positions)
    return torch.tensor(float(value), dtype=layout.dtype, device=positions.device)


def _stride(shape: Sequence[int], dim: int) -> int:
    """How many elements lie between two neighbours along a dimension of a contiguous tensor."""
    return math.prod(shape[dim + 1 :])
