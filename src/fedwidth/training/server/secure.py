"""Secure sums in a simulated round: the updates of single clients become what the server would learn of them.

The same words, sums and rules as on real devices (`fedwidth.secure`), but no masks, which cancel, and no keys. All
clients that were drawn count as having shared; who failed or came late has sent nothing. What is not opened keeps its
old value, and is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.core.running_mean import Weight, sum_dtype
from fedwidth.core.submodel import State
from fedwidth.core.updates import PUBLIC_WEIGHTS, weigh
from fedwidth.methods import Task
from fedwidth.plan.plan import Plan
from fedwidth.secure.fixed_point import FixedPoint
from fedwidth.secure.messages import overhead
from fedwidth.secure.simulate import Sums
from fedwidth.settings import SecureSettings
from fedwidth.training.server.device_noise import DeviceNoise
from fedwidth.training.server.layout import Layout, layouts_of
from fedwidth.training.server.words import Wording, check_whole_numbers, classes_of, summed_tensors


@dataclass(frozen=True)
class Opened:
    """What was opened of a round, and what that cost."""

    segments: int
    """Into how many segments the sub-models of the round were cut."""
    closed: int
    """How many of them were not opened."""
    closed_weights: float
    """The share of the weights that were sent and not opened."""
    clipped: int
    """How many single changes were beyond the clip; where clients add noise, how many clients' updates were."""
    down: int
    """Bytes that clients were sent beside their sub-models."""
    up: int
    """Bytes that clients sent beside their sub-models."""


@dataclass(frozen=True)
class SecureRound:
    """The secure sums of one round."""

    state: State
    """The state that the round began with."""
    plan: Plan
    drawn: Sequence[Task]
    """Everyone's task, whether they send anything or not."""
    settings: SecureSettings
    by_shells: bool
    """Whether sub-models lie inside each other and are cut into shells; otherwise cohorts are segments."""
    weighting: str = "equal"
    label_rows: bool = False
    """Whether rows of classes are averaged over the clients that have samples of the class. Then everybody sends for
    each segment and class what it weighs there, and every width of a segment must have enough clients."""
    noise: DeviceNoise | None = None
    """The noise that clients add to their words, where sums are private too; then only what is trained is sent."""
    trained: Collection[str] = ()
    """What is trained."""
    round: int = 0

    @cached_property
    def wording(self) -> Wording:
        """How updates become words."""
        private = self.weighting not in PUBLIC_WEIGHTS
        heaviest = self.settings.max_weight if private else max(map(self.weight, self.drawn))
        classes = classes_of(self.plan) if self.label_rows else 0
        point = FixedPoint(len(self.drawn), self.settings.clip, heaviest) if self.noise is None else self.noise.point
        return Wording(point, classes, private)

    @cached_property
    def names(self) -> list[str]:
        """The tensors that are added up."""
        found = summed_tensors(self.plan, self.state, self.trained)
        return found if self.noise is None else [name for name in found if name in self.trained]

    @property
    def every_class(self) -> bool:
        """Whether every width of a segment must have enough clients: differences of sums would show those of one."""
        return self.label_rows or self.wording.private_weight

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        """Where the words of each sub-model of the round lie, by its key."""
        indexes = {task.part.key: task.index for task in self.drawn}
        return layouts_of(indexes, self.names, by_shells=self.by_shells)

    @cached_property
    def sent(self) -> dict[str, State]:
        """The sub-models of the round as clients are sent them, by their keys."""
        return {key: layout.index.cut(self.state, self.plan) for key, layout in self.layouts.items()}

    @cached_property
    def held(self) -> dict[int, tuple[int, ...]]:
        """The segments that each client holds."""
        return {task.client: self.layouts[task.part.key].words.segments for task in self.drawn}

    @cached_property
    def changes(self) -> dict[int, int]:
        """How many words of changes each segment has; those beside them come after."""
        words = [layout.words for layout in self.layouts.values()]
        return {s: n for own in words for s, n in zip(own.segments, own.lengths, strict=True)}

    def weight(self, task: Task) -> float:
        """What a client weighs as far as everybody may know."""
        weighting = self.weighting if self.weighting in PUBLIC_WEIGHTS else "equal"
        return weigh(weighting, samples=1, index=task.part, updates=1)

    def add(self, tasks: Sequence[Task], sums: Sequence[CohortSum]) -> tuple[list[CohortSum], Opened]:
        """What the server learns of the sums of these tasks' single clients; nothing where too few have sent theirs."""
        adding, clipped = Sums(self.held, self.settings.min_clients, every_class=self.every_class), 0
        for task, total in zip(tasks, sums, strict=True):
            words, beyond = self.words(task, total)
            adding.add(task.client, words)
            clipped += beyond
        return self.read(tasks, adding.opened(), clipped)

    def read(
        self, tasks: Sequence[Task], opened: Mapping[int, NDArray[np.uint32]], clipped: int
    ) -> tuple[list[CohortSum], Opened]:
        """The sums that stand in the opened words of these tasks' clients, and what was opened."""
        held, lengths, wording = self.held, self.changes, self.wording
        weights = {s: sum(self.weight(task) for task in tasks if s in held[task.client]) for s in opened}
        rows = {s: own[lengths[s] :][: wording.classes].astype(np.float64) for s, own in opened.items()}
        if wording.private_weight:
            weights = {s: float(own[lengths[s] + wording.classes]) for s, own in opened.items()}
        found = []
        for key, layout in self.layouts.items():
            last = layout.words.segments[-1]
            if last in opened and (not self.by_shells or last == max(opened)):
                holders = sum(last in held[task.client] for task in tasks)
                mean = _Mean(layout, self.sent[key], {s: own[: lengths[s]] for s, own in opened.items()}, wording.point)
                found.append(mean.sum(weights, rows, holders, self.plan, by_shells=self.by_shells))
        tried = {segment for task in tasks for segment in held[task.client]}
        total = sum(lengths[segment] for segment in tried)
        closed = sum(lengths[segment] for segment in tried - opened.keys()) / total if total else 1.0
        down, up = overhead(held, [task.client for task in tasks], opened)
        if self.by_shells:  # the shell of each unit, in a byte
            down += sum(task.index.number_of_units for task in self.drawn)
        up += 4 * wording.beside * sum(len(held[task.client]) for task in tasks)
        return found, Opened(len(lengths), len(lengths) - len(opened), closed, clipped, down, up)

    def words(self, task: Task, total: CohortSum) -> tuple[dict[int, NDArray[np.uint32]], int]:
        """The words of one client by segment, and how many of its changes (with noise: updates) were clipped."""
        start, layout = self.sent[task.part.key], self.layouts[task.part.key]
        if self.noise is None:
            check_whole_numbers(task.client, total, start, self.names)
            return self.wording.words(total, start, layout, self.weight(task))
        trained, before = layout.flatten(total.mean), layout.flatten(start)
        noisy, longer = self.noise.words(trained, before, client=task.client, round=self.round)
        return dict(layout.words.split(noisy)), int(longer)


@dataclass(frozen=True)
class _Mean:
    """The mean of the clients that hold a sub-model or a part of it, from the sums that were opened."""

    layout: Layout
    start: State
    opened: Mapping[int, NDArray[np.uint32]]
    point: FixedPoint

    def sum(
        self,
        weights: Mapping[int, float],
        rows: Mapping[int, NDArray[np.float64]],
        clients: int,
        plan: Plan,
        *,
        by_shells: bool,
    ) -> CohortSum:
        """The sum with what its elements weigh: nothing where they were not opened."""
        layout, words = self.layout, self.layout.words
        pieces = zip(words.segments, words.lengths, strict=True)
        totals = [self.opened.get(segment, np.zeros(length, np.uint32)) for segment, length in pieces]
        changes = layout.unflatten(self.point.mean(np.concatenate(totals), 1.0))
        of_shell = np.array([weights.get(segment, 0.0) for segment in words.segments])
        classes = max(map(len, rows.values()))
        of_row = np.array([rows.get(segment, np.zeros(classes)) for segment in words.segments])
        means: dict[str, Tensor] = {}
        found: dict[str, Weight] = {}
        for name in layout.names:
            old, shell = self.start[name], layout.shell_of(name)
            dims = [dim for tensor, dim in plan.label_axes if tensor == name] if classes else []
            weight = np.moveaxis(of_row[shell.squeeze(dims[0])], -1, dims[0]) if dims else of_shell[shell]
            each = torch.as_tensor(weight)
            change = torch.where(each > 0, changes[name] / each.clamp(min=1e-100), 0.0)
            means[name] = (old.double() + change.to(old.device)).to(sum_dtype(old.dtype))
            found[name] = each.to(old.device) if by_shells or dims else float(of_shell[0])
        return CohortSum.of(layout.index, means, found, clients)
