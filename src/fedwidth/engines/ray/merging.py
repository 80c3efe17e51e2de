"""The sums of a round on Ray: chunks are answered in any order and merged in the order of tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.engines.ray.chunks import Chunk, MergeGroup
from fedwidth.engines.ray.messages import ChunkResult
from fedwidth.engines.transfer import decode
from fedwidth.methods import Task
from fedwidth.training.engine import Report


class OrderedMerge:
    """Takes the results of chunks in any order and merges their sums in the order of tasks."""

    def __init__(self, tasks: Sequence[Task], chunks: Sequence[Chunk], device: torch.device) -> None:
        self.tasks, self.chunks, self.device = tasks, chunks, device
        self.done = 0
        """The number of tasks whose result is there."""
        self._sums = {task.cohort: CohortSum(task.index) for task in tasks}
        self._kept: dict[int, dict[str, dict[str, Tensor]]] = {}
        self._reported: dict[int, tuple[int, float]] = {}
        """Samples seen and loss, by the number of the task."""
        self._early: dict[int, ChunkResult] = {}
        """Results that are not merged yet, by the number of the chunk."""
        self._unmerged: dict[MergeGroup, deque[Chunk]] = {}
        for chunk in chunks:
            self._unmerged.setdefault(chunk.merge_group, deque()).append(chunk)

    @property
    def complete(self) -> bool:
        """Whether the results of all tasks are there."""
        return self.done == len(self.tasks)

    def add(self, chunk: Chunk, result: ChunkResult) -> None:
        """Take the result of a chunk; its sums are merged as soon as those before them have been."""
        assert chunk.tasks[0] not in self._reported, "a chunk is added once"
        for number, passes, loss in zip(chunk.tasks, result.report.passes, result.report.losses, strict=True):
            self._reported[number] = passes, loss
        for client, kept in result.kept.items():
            self._kept[client] = {name: decode(tensors, device=self.device) for name, tensors in kept.items()}
        self.done += len(chunk.tasks)
        self._early[chunk.number] = result
        unmerged = self._unmerged[chunk.merge_group]
        while unmerged and unmerged[0].number in self._early:
            for encoded in self._early.pop(unmerged.popleft().number).sums:
                whole = self._sums[encoded.cohort]
                whole.merge(encoded.sum(whole.index, self.device))

    def sums(self) -> list[CohortSum]:
        """The sum of each cohort, in order of first appearance."""
        return list(self._sums.values())

    def report(self) -> Report:
        """What the clients reported, in task order."""
        reported = [self._reported[number] for number in range(len(self.tasks))]
        passes, losses = tuple(passes for passes, _ in reported), tuple(loss for _, loss in reported)
        return Report(passes, losses, kept=self._kept)
