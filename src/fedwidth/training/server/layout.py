"""Sub-models as words: where the elements of an index's tensors lie when it is cut into segments.

The level of a position along an axis is the narrowest sub-model of the round that holds it. A device does not know
which units it holds, but is told the level of each in a byte (`unit_levels`). That is enough to lay its words as all
others do (`layout_of_device`), because what is cut out of a tensor keeps its order.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.core.running_mean import accumulable
from fedwidth.errors import SelectionError
from fedwidth.plan.axis import groups_of
from fedwidth.plan.plan import Plan
from fedwidth.secure.segments import MAX_CLASSES, Words, cohort, shells

Levels = Mapping[str, tuple[NDArray[np.uint8], ...]]


@dataclass(frozen=True)
class Layout:
    """The words of one sub-model."""

    index: Index
    names: Sequence[str]
    """The tensors that are sent, in their order."""
    words: Words
    levels: Levels
    """For each tensor and axis the shells of its positions."""

    def flatten(self, tensors: Mapping[str, Tensor]) -> NDArray[np.floating]:
        """The elements of a sub-model in the order of its words."""
        flat = torch.cat([accumulable(tensors[name].detach()).reshape(-1).cpu() for name in self.names])
        return self.words.arrange(flat.numpy())

    def unflatten(self, words: NDArray[np.floating]) -> dict[str, Tensor]:
        """The tensors of a sub-model: the inverse of `flatten`."""
        shapes = [self.index.shapes[name] for name in self.names]
        flat = torch.from_numpy(self.words.restore(words))
        pieces = torch.split(flat, [math.prod(shape) for shape in shapes])
        return {name: piece.reshape(shape) for name, piece, shape in zip(self.names, pieces, shapes, strict=True)}

    def shell_of(self, name: str) -> NDArray[np.uint8]:
        """The shell of the elements of a tensor, with one entry along axes that are never sliced."""
        found = np.zeros((), np.uint8)
        for axis, own in zip(self.index.plan.axes[name], self.levels[name], strict=True):
            found = np.maximum(found[..., None], own if groups_of(axis) else own[:1])
        return found


def layouts_of(indexes: Mapping[str, Index], names: Sequence[str], *, by_shells: bool) -> dict[str, Layout]:
    """The words of every sub-model of a round, by its key."""
    if not by_shells:
        return {key: _cohort_layout(index, names, number) for number, (key, index) in enumerate(indexes.items())}
    if len(indexes) > MAX_CLASSES:
        raise SelectionError(f"a round has {len(indexes)} different sub-models, and shells are for {MAX_CLASSES}")
    ordered = sorted(indexes.items(), key=lambda item: item[1].number_of_units)
    full = {name: _full_levels(name, [index for _, index in ordered]) for name in names}
    return {key: _shell_layout(index, names, number, full) for number, (key, index) in enumerate(ordered)}


def digest_plan(plan: Plan) -> bytes:
    """A digest of a plan's tensors: their names, shapes and ties."""
    about = [[name, *shape] for name, shape in plan.shapes.items()], sorted(plan.tied.items())
    return hashlib.sha256(json.dumps(about).encode()).digest()


def unit_levels(index: Index, layouts: Iterable[Layout]) -> NDArray[np.uint8]:
    """For each unit that an index holds, group after group, the narrowest sub-model of the round that holds it."""
    assert index.units is not None
    ordered = sorted((layout.index for layout in layouts), key=lambda each: each.number_of_units)
    found = []
    for group, units in index.units.items():
        levels = np.full(len(units), len(ordered) - 1, np.uint8)
        for number in reversed(range(len(ordered))):
            others = ordered[number].units
            assert others is not None
            levels[np.isin(units.numpy(), others[group].numpy())] = number
        found.append(levels)
    return np.concatenate(found) if found else np.empty(0, np.uint8)


def layout_of_device(
    index: Index, names: Sequence[str], segments: Sequence[int], levels: NDArray[np.uint8] | None
) -> Layout:
    """The words of a device's sub-model, of which it knows the sizes and, where it is cut into shells, unit levels.

    `index` may keep other units than the device was sent, as long as they are equally many of each group.
    """
    if levels is None:
        (number,) = segments
        return _cohort_layout(index, names, number)
    if levels.size != index.number_of_units or levels.max(initial=0) >= len(segments):
        raise SelectionError("the levels are not those of this device's units")
    assert index.units is not None
    ends = np.cumsum([len(units) for units in index.units.values()])
    own = dict(zip(index.units, np.split(levels, ends[:-1]), strict=True))
    indexes: dict[str, Index] = {}
    for number in segments:
        inner = {group: units[torch.from_numpy(own[group] <= number)] for group, units in index.units.items()}
        indexes[str(number)] = Index.of_units(index.plan, inner)
    return layouts_of(indexes, names, by_shells=True)[str(segments[-1])]


def _cohort_layout(index: Index, names: Sequence[str], number: int) -> Layout:
    levels = {name: tuple(np.zeros(n, np.uint8) for n in index.shapes[name]) for name in names}
    return Layout(index, names, cohort(number, sum(math.prod(index.shapes[name]) for name in names)), levels)


def _shell_layout(index: Index, names: Sequence[str], number: int, full: Levels) -> Layout:
    levels = {
        name: tuple(own[kept.numpy()] for own, kept in zip(full[name], index[name], strict=True)) for name in names
    }
    return Layout(index, names, shells([levels[name] for name in names], number + 1), levels)


def _full_levels(name: str, indexes: Sequence[Index]) -> tuple[NDArray[np.uint8], ...]:
    """For each axis of a full tensor the narrowest index, of all from narrow to wide, that holds each position."""
    found = []
    for dim, size in enumerate(indexes[0].plan.shapes[name]):
        levels = np.full(size, len(indexes) - 1, np.uint8)
        for number in reversed(range(len(indexes))):
            kept = indexes[number][name][dim].numpy()
            levels[kept] = number
            if number + 1 < len(indexes) and not np.isin(kept, indexes[number + 1][name][dim].numpy()).all():
                raise SelectionError(f"sub-models of the round do not lie inside each other in '{name}'")
        found.append(levels)
    return tuple(found)
