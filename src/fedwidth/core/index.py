"""The index: which positions of every tensor one sub-model holds.

Shape legend: a tensor of full shape [K0, K1, …] has a narrow shape [n0, n1, …]; `index[name]` is a tuple of sorted
LongTensors of those lengths. Most methods keep the same units for a whole width group (`Index.of_units`); FedBRB picks
blocks tensor by tensor (`Index.of_tensors`). Shapes depend on `counts` (units kept per group) only, positions may not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedwidth.core.rectangles import Rectangles, Runs, rectangles, runs_of
from fedwidth.errors import SelectionError
from fedwidth.plan.axis import Axis, groups_of, positions
from fedwidth.plan.plan import Plan, check_plan
from fedwidth.plan.units import check_units

if TYPE_CHECKING:
    from fedwidth.core.cohort import CohortSum
    from fedwidth.core.cost import Cost


class Index(Mapping[str, tuple[Tensor, ...]]):
    """The positions that a sub-model keeps of every tensor, one sorted LongTensor for each dimension.

    Indexes of one plan with equal `key` are equal and hold the same positions: their clients are averaged together. An
    index is the common kind of `Part`. What is done with it stands in `submodel`, `narrow`, `cohort` and `cost`, which
    know indexes and are therefore imported only when they are needed.
    """

    def __init__(
        self,
        plan: Plan,
        kept: Mapping[str, tuple[Tensor, ...]],
        *,
        counts: Mapping[str, int],
        units: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.plan = plan
        self.counts = dict(counts)
        self.units = dict(units) if units is not None else None
        """The units kept of each group; None where tensors of one group keep different units (FedBRB)."""
        self._kept = dict(kept)
        self._pieces: dict[str, Rectangles | None] = {}
        self._runs: dict[tuple[int, int], Runs] = {}
        """The runs of positions along a dimension, by the identity of the tensor that holds them and the full size."""
        self._on: dict[tuple[str, torch.device], tuple[Tensor, ...]] = {}

    @classmethod
    def of_units(cls, plan: Plan, units: Mapping[str, Iterable[int] | Tensor]) -> Index:
        """An index that keeps these units of each group; a group that is not named stays whole."""
        check_plan(plan)
        if not isinstance(units, Mapping):
            raise SelectionError(f"expected units by group, such as {{'conv1': [0, 2]}}, not {units!r}")
        for name in units:
            if name not in plan.groups:
                raise SelectionError(f"the plan has no width group '{name}'; it has: {', '.join(plan.groups)}")
        chosen = {
            name: check_units(group, units[name]) if name in units else torch.arange(group.size)
            for name, group in plan.groups.items()
        }
        counts = {name: len(u) for name, u in chosen.items()}
        axes, numbers = plan.numbered_axes
        kept = [positions(axis, chosen) for axis in axes]
        tensors = {name: tuple([kept[number] for number in own]) for name, own in numbers.items()}
        return cls(plan, tensors, counts=counts, units=chosen)

    @classmethod
    def of_tensors(cls, plan: Plan, counts: Mapping[str, int], choose: Callable[[str, int, str], Tensor]) -> Index:
        """An index whose units `choose(tensor, dimension, group)` names tensor by tensor.

        Every choice must have as many units as `counts` says. A tied tensor keeps what the one it is tied to keeps.
        """
        if all(counts[name] == group.size for name, group in plan.groups.items()):
            return cls.whole(plan)

        checked: dict[tuple[str, int, int], tuple[Tensor, Tensor]] = {}  # by group and what was chosen, as it was then
        found: dict[tuple[Axis, tuple[int, ...]], Tensor] = {}  # axes that are alike and keep the same share tensors

        def units_of(name: str, dim: int, group: str) -> Tensor:
            chosen = choose(name, dim, group)
            known = isinstance(chosen, Tensor) and not chosen.is_inference()  # whose changes are not counted
            at = (group, id(chosen), chosen._version) if known else (group, -1, len(checked))
            if at not in checked:
                units = check_units(plan.groups[group], chosen)
                if len(units) != counts[group]:
                    raise SelectionError(f"'{name}' keeps {len(units)} units of '{group}', not {counts[group]}")
                checked[at] = chosen, units  # both are held, so that no other tensor gets their identity
            return checked[at][1]

        def pick(name: str, dim: int, axis: Axis) -> Tensor:
            units = {group: units_of(name, dim, group) for group in groups_of(axis)}
            at = axis, tuple(map(id, units.values()))
            if at not in found:
                found[at] = positions(axis, units)
            return found[at]

        tensors: dict[str, tuple[Tensor, ...]] = {}
        for name, axes in plan.axes.items():
            first = plan.tied.get(name)
            tensors[name] = tensors[first] if first else tuple(pick(name, d, axis) for d, axis in enumerate(axes))
        return cls(plan, tensors, counts=counts)

    @classmethod
    def whole(cls, plan: Plan) -> Index:
        """An index that keeps everything: the sub-model is the global model."""
        return cls.of_units(plan, {})

    def __getitem__(self, name: str) -> tuple[Tensor, ...]:
        return self._kept[name]

    def __getstate__(self) -> dict[str, Any]:
        """Without what is kept by the identity of a tensor or its device, which are others elsewhere."""
        return {**self.__dict__, "_runs": {}, "_on": {}}

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"Index({sum(self.counts.values())} of {sum(g.size for g in self.plan.groups.values())} units)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Index):
            return NotImplemented
        return self is other or (self.key == other.key and self.fits(other.plan))

    def __hash__(self) -> int:
        return hash(self.key)

    def fits(self, plan: Plan) -> bool:
        """Whether the index was made for this plan, or for one just like it (a copy, another trace of the model)."""
        return self.plan is plan or self.plan.axes == plan.axes

    @cached_property
    def key(self) -> str:
        """A digest of what is kept: equal for indexes of one plan that hold the same positions."""
        digest = hashlib.blake2b(digest_size=16)
        source: Iterable[Tensor] = (
            self.units.values() if self.units is not None else (p for dims in self._kept.values() for p in dims)
        )
        for kept in source:
            digest.update(len(kept).to_bytes(8, "little"))
            digest.update(kept.numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The narrow shape of every tensor."""
        return {name: tuple(len(p) for p in dims) for name, dims in self._kept.items()}

    @cached_property
    def is_whole(self) -> bool:
        """Whether every unit is kept, so that the sub-model is the whole model."""
        return all(self.counts[name] == group.size for name, group in self.plan.groups.items())

    @cached_property
    def size(self) -> tuple[tuple[str, int], ...]:
        """How many units each group keeps; sub-models of one size have equal shapes."""
        return tuple(self.counts.items())

    @property
    def number_of_units(self) -> int:
        """How many units are kept of all groups together."""
        return sum(self.counts.values())

    def cut(self, state: Mapping[str, Tensor], plan: Plan) -> dict[str, Tensor]:
        """The tensors of the sub-model, cut out of a global state."""
        from fedwidth.core.submodel import extract

        return extract(state, plan, self)

    def module(self, model: nn.Module, plan: Plan) -> nn.Module:
        """A module of the size of the sub-model, its tensors not yet filled."""
        from fedwidth.core.narrow import skeleton

        return skeleton(model, plan, self.counts)

    def accumulator(self) -> CohortSum:
        """An empty sum of sub-models at these positions."""
        from fedwidth.core.cohort import CohortSum

        return CohortSum(self)

    def cost(self, model: nn.Module, plan: Plan, example: Any, *, capacity: float) -> Cost:
        """What the sub-model costs a device."""
        from fedwidth.core.cost import cost_at, count_parameters

        return cost_at(model, plan, example, self.counts, capacity=capacity, full=count_parameters(plan, {}))

    def sliced(self, name: str) -> tuple[int, ...]:
        """The dimensions of a tensor of which the sub-model holds only a part."""
        return self._sliced[name]

    @cached_property
    def _sliced(self) -> dict[str, tuple[int, ...]]:
        full = self.plan.shapes
        return {
            name: tuple(d for d, n in enumerate(shape) if n != full[name][d]) for name, shape in self.shapes.items()
        }

    def on(self, name: str, device: torch.device) -> tuple[Tensor, ...]:
        """The positions kept of a tensor, as tensors on a device; they are copied there once."""
        if device.type == "cpu":
            return self._kept[name]
        if (name, device) not in self._on:
            self._on[name, device] = tuple(p.to(device) for p in self._kept[name])
        return self._on[name, device]

    def pieces(self, name: str) -> Rectangles | None:
        """The positions kept of a tensor as a few rectangles; None if these would be more than `MAX_RECTANGLES`.

        Windows (prefix, rolling, blocks) are one to four rectangles, and moving a rectangle is much faster than a
        gather.
        """
        if name not in self._pieces:
            self._pieces[name] = rectangles(self._runs_of(name))
        return self._pieces[name]

    def _runs_of(self, name: str) -> Iterator[Runs]:
        """The runs of positions kept along each dimension of a tensor."""
        for axis, kept in zip(self.plan.axes[name], self._kept[name], strict=True):
            at = id(kept), axis.size
            if at not in self._runs:  # tensors that keep the same positions of an axis share them
                self._runs[at] = runs_of(kept, axis.size)
            yield self._runs[at]
