"""The books of a round on Ray: which parcels have been answered, and what they sum to."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.engines.ray.parcels import Lane, Parcel
from fedwidth.engines.ray.records import Answer, unpack
from fedwidth.methods import Task
from fedwidth.training.rounds import Report


class Ledger:
    """Takes answers in any order and merges their sums in the order of tasks."""

    def __init__(self, tasks: Sequence[Task], parcels: Sequence[Parcel], device: torch.device) -> None:
        self.tasks, self.parcels, self.device = tasks, parcels, device
        self.done = 0
        self._sums = {task.cohort: CohortSum(task.index) for task in tasks}
        self._kept: dict[int, dict[str, dict[str, Tensor]]] = {}
        self._facts: dict[int, tuple[int, float]] = {}
        self._early: dict[int, Answer] = {}
        self._lanes: dict[Lane, deque[Parcel]] = {}
        for parcel in parcels:
            self._lanes.setdefault(parcel.lane, deque()).append(parcel)

    @property
    def complete(self) -> bool:
        """Whether every task has been entered."""
        return self.done == len(self.tasks)

    def enter(self, parcel: Parcel, answer: Answer) -> None:
        """Take an answer; its sums are merged as soon as those before them have been."""
        assert parcel.tasks[0] not in self._facts, "a parcel is entered once"
        for number, passes, loss in zip(parcel.tasks, answer.report.passes, answer.report.losses, strict=True):
            self._facts[number] = passes, loss
        for client, kept in answer.kept.items():
            self._kept[client] = {name: unpack(tensors, self.device) for name, tensors in kept.items()}
        self.done += len(parcel.tasks)
        self._early[parcel.number] = answer
        lane = self._lanes[parcel.lane]
        while lane and lane[0].number in self._early:
            for packed in self._early.pop(lane.popleft().number).sums:
                whole = self._sums[packed.key]
                whole.merge(packed.sum(whole.index, self.device))

    def sums(self) -> list[CohortSum]:
        """One per cohort, in order of first appearance."""
        return list(self._sums.values())

    def report(self) -> Report:
        """What the clients reported, in task order."""
        facts = [self._facts[number] for number in range(len(self.tasks))]
        passes, losses = tuple(passes for passes, _ in facts), tuple(loss for _, loss in facts)
        return Report(passes, losses, kept=self._kept)
