"""The clients of a round by what they hold: how it is cut out of the state as a vector, and where updates are added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.core.submodel import take
from fedwidth.engines.faults import error_context
from fedwidth.engines.flat.layout import FlatState, Layout, SubLayout, cut_sent
from fedwidth.engines.flat.parts import PartCohort, PartLayout
from fedwidth.engines.flat.pool import Pool
from fedwidth.engines.flat.sums import FlatSum
from fedwidth.engines.flat.tasks import FlatTask, Size, size_of
from fedwidth.engines.flat.vectors import changed_by_training
from fedwidth.methods import Task
from fedwidth.training.client import Trainer

Cohorts = dict[str, FlatSum | PartCohort]
"""The clients of a round by what they hold: slices are added up as vectors, other parts by their own sums."""


@dataclass
class Layouts:
    """How the vectors of a model and of its sub-models are laid out; runs of one model may share this."""

    full: Layout | None = None
    subs: dict[Size, SubLayout] = field(default_factory=dict)
    parts: dict[Size, PartLayout] = field(default_factory=dict)
    """Those of sub-models that are no slices."""


class Cutter:
    """Cuts what clients hold out of a state."""

    def __init__(self, trainer: Trainer, pool: Pool, layouts: Layouts | None = None) -> None:
        self.trainer, self.pool = trainer, pool
        self.layouts = layouts or Layouts()
        self._changed: list[str] | None = None
        """The tensors beside the vector that training may change; None before the first round."""
        self._positions: dict[str, Tensor] = {}
        """Positions of the last round's sub-models by their index, for methods whose windows stay."""

    def clear(self) -> None:
        """Let go of all that lies on the device."""
        self.layouts.subs.clear()
        self.layouts.parts.clear()
        self._positions.clear()

    def flatten(self, state: Mapping[str, Tensor]) -> FlatState:
        """The state as one vector."""
        if self.layouts.full is None:
            self.layouts.full = Layout(self.trainer.plan, state, next(self.trainer.model.parameters()).dtype)
        if self._changed is None:
            self._changed = changed_by_training(self.trainer.model, self.layouts.full.others)
        return self.layouts.full.flatten(state)

    def cohorts(self, tasks: Sequence[Task], round: int) -> Cohorts:
        """An empty sum for each cohort; of slices with the positions that they have in the state's vector."""
        sums: Cohorts = {}
        positions: dict[str, Tensor] = {}
        for task in tasks:
            with error_context("cut", round, task):
                if task.cohort in sums:
                    continue
                # Units of adapters outside a slice are folded into what it holds: more than a gather.
                if not isinstance(task.part, Index) or self.trainer.plan.adapters:
                    sums[task.cohort] = PartCohort(task.part, self._part_layout(task))
                    continue
                index, sub = task.index, self._sub_layout(task)
                known = positions.get(index.key, self._positions.get(index.key))
                positions[index.key] = known if known is not None else sub.positions(index)
                sums[task.cohort] = FlatSum(index, sub, positions[index.key])
        self._positions = positions
        return sums

    def _sub_layout(self, task: Task) -> SubLayout:
        """How slices of a task's size are laid out."""
        assert self.layouts.full is not None
        size, index = size_of(task), task.index
        if size not in self.layouts.subs:
            last = self.pool.channels_last(index.shapes)
            self.layouts.subs[size] = SubLayout(self.layouts.full, index, self.trainer.device, channels_last=last)
        return self.layouts.subs[size]

    def _part_layout(self, task: Task) -> PartLayout:
        """How parts of a task's size that are no slices are laid out."""
        size = size_of(task)
        if size not in self.layouts.parts:
            self.layouts.parts[size] = PartLayout(task.part, self.trainer, self.pool.channels_last)
        return self.layouts.parts[size]

    def cut(
        self, cohort: FlatSum | PartCohort, state: Mapping[str, Tensor], flat: FlatState
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What the clients of a cohort begin with: a vector, and the tensors beside it that training may change."""
        if isinstance(cohort, PartCohort):
            return cohort.cut(state, self.trainer)
        others = {name: take(flat.others[name], cohort.index, name) for name in self._changed or ()}
        return torch.index_select(flat.flat, 0, cohort.positions), others

    def with_sent(self, flat_tasks: list[FlatTask], sums: Cohorts) -> list[FlatTask]:
        """The tasks with what their clients are sent beside their sub-models."""
        layout = self.layouts.full
        if layout is None or not any(flat_task.task.sends for flat_task in flat_tasks):
            return flat_tasks
        cut: dict[object, Tensor] = {}  # what several clients with one index are sent is cut once
        found = []
        for flat_task in flat_tasks:
            task, sent = flat_task.task, {}
            for name, value in task.sends.items():
                tensors = map(id, value.values()) if isinstance(value, Mapping) else [value]
                key, cohort = (tuple(tensors), task.index.key), sums[task.cohort]
                if key not in cut:
                    assert isinstance(cohort, FlatSum)
                    cut[key] = cut_sent(value, layout, cohort.positions)
                sent[name] = cut[key]
            found.append(replace(flat_task, sent=sent))
        return found
