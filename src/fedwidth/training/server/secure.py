"""Secure sums in a simulated round: the updates of single clients become what the server would learn of them.

The same words, sums and rules as on real devices (`fedwidth.secure`), but no masks, which cancel, and no keys. All
clients that were drawn count as having shared; who failed or came late has sent nothing. What is not opened keeps its
old value, and is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.core.running_mean import Weight, accumulable, sum_dtype
from fedwidth.core.submodel import State
from fedwidth.core.updates import weigh
from fedwidth.errors import UpdateError
from fedwidth.methods import Task
from fedwidth.plan.plan import Plan
from fedwidth.secure.fixed_point import FixedPoint
from fedwidth.secure.messages import overhead
from fedwidth.secure.simulate import Sums
from fedwidth.settings import SecureSettings
from fedwidth.training.server.device_noise import DeviceNoise
from fedwidth.training.server.layout import Layout, layouts_of


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

    def add(self, tasks: Sequence[Task], sums: Sequence[CohortSum]) -> tuple[list[CohortSum], Opened]:
        """What the server learns of the sums of these tasks' single clients; nothing where too few have sent theirs."""
        names = [name for name in self.plan.axes if name in sums[0].mean and self.state[name].is_floating_point()]
        if self.noise is not None:
            names = [name for name in names if name in self.trained]
        indexes = {task.part.key: task.index for task in self.drawn}
        layouts = layouts_of(indexes, names, by_shells=self.by_shells)
        sent = {key: index.cut(self.state, self.plan) for key, index in indexes.items()}
        held = {task.client: layouts[task.part.key].words.segments for task in self.drawn}
        point = FixedPoint(len(self.drawn), self.settings.clip, max(map(self._weight, self.drawn)))
        point = point if self.noise is None else self.noise.point
        adding, clipped = Sums(held, self.settings.min_clients, every_class=self.label_rows), 0
        for task, total in zip(tasks, sums, strict=True):
            start = sent[task.part.key]
            if self.noise is None:
                _check_whole_numbers(task, total, start, names)
            words, beyond = self._words(task, total, start, layouts[task.part.key], point)
            adding.add(task.client, words)
            clipped += beyond
        opened, lengths = adding.opened(), _lengths(layouts.values())
        weights = {s: sum(self._weight(task) for task in tasks if s in held[task.client]) for s in opened}
        found = []
        for key, layout in layouts.items():
            last = layout.words.segments[-1]
            if last in opened and (not self.by_shells or last == max(opened)):
                holders = sum(last in held[task.client] for task in tasks)
                mean = _Mean(layout, sent[key], {s: own[: lengths[s]] for s, own in opened.items()}, point)
                rows = {s: own[lengths[s] :].astype(np.float64) for s, own in opened.items()}
                found.append(mean.sum(weights, rows, holders, self.plan, by_shells=self.by_shells))
        tried = {segment for task in tasks for segment in held[task.client]}
        closed = sum(lengths[segment] for segment in tried - opened.keys()) / sum(lengths[s] for s in tried)
        down, up = overhead(held, [task.client for task in tasks], opened)
        if self.by_shells:  # the shell of each unit, in a byte
            down += sum(task.index.number_of_units for task in self.drawn)
        return found, Opened(len(lengths), len(lengths) - len(opened), closed, clipped, down, up)

    def _weight(self, task: Task) -> float:
        """What a client weighs: something that everybody may know."""
        return weigh(self.weighting, samples=1, index=task.part, updates=1)

    def _words(
        self, task: Task, total: CohortSum, start: State, layout: Layout, point: FixedPoint
    ) -> tuple[dict[int, NDArray[np.uint32]], int]:
        """The words of one client by segment, and how many changes were clipped.

        Rows of classes that it lacks do not change, and after each segment comes what it weighs in each class.
        """
        if self.noise is not None:
            values, before = layout.flatten(total.mean), layout.flatten(start)
            noisy, longer = self.noise.words(values, before, client=task.client, round=self.round)
            return dict(layout.words.split(noisy)), int(longer)
        trained, rows = dict(total.mean), np.empty(0, np.uint32)
        for name, weight in total.weight.items():
            if isinstance(weight, Tensor):
                trained[name] = torch.where(weight > 0, trained[name], start[name].to(trained[name]))
                rows = weight.flatten().cpu().numpy().astype(np.uint32)
        words, clipped = point.words(layout.flatten(trained), layout.flatten(start), self._weight(task))
        return {segment: np.concatenate([own, rows]) for segment, own in layout.words.split(words).items()}, clipped


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


def _check_whole_numbers(task: Task, total: CohortSum, start: State, names: Sequence[str]) -> None:
    """Refuse tensors that are no numbers with a fraction and that a client has changed."""
    for name, mean in total.mean.items():
        if name not in names and not torch.equal(mean, accumulable(start[name])):
            raise UpdateError(
                f"client {task.client} changed '{name}', which holds {start[name].dtype}: secure sums add changes of"
                " floating-point numbers alone"
            )


def _lengths(layouts: Iterable[Layout]) -> dict[int, int]:
    """How many words each segment has."""
    return {s: n for one in layouts for s, n in zip(one.words.segments, one.words.lengths, strict=True)}
