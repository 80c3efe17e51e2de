"""How a round is cut into chunks for Ray's workers.

A chunk is a few tasks that one worker trains and sums. Which tasks form a chunk follows from the tasks and the inner
engine alone, never from the workers: sums of chunks are merged in the order of tasks, so neither the number of workers
nor who trained what changes a bit. A chunk of one client is that client's update as it is. So a round that is cut into
single clients is summed in exactly the order of the serial engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedwidth.methods import Task

MAX_CHUNKS = {"serial": 64, "vectorised": 16, "cuda": 64}
"""The number of chunks of a round (a few more where widths do not divide evenly); fewer where clients are stacked."""

MIN_CLIENTS = {"serial": 1, "vectorised": 8, "cuda": 4}
"""The number of clients in a chunk, while there are as many: they train as one stack, or side by side on a GPU."""

MergeGroup = tuple[tuple[str, int], ...]
"""Names the chunks whose sums are merged one after the other. Tasks with one index are always in one such group."""


@dataclass(frozen=True)
class Chunk:
    """Tasks that one worker trains and sums, by their numbers in the round."""

    number: int
    tasks: tuple[int, ...]
    merge_group: MergeGroup


def split_round(tasks: Sequence[Task], inner: str, *, max_chunks: int | None = None) -> list[Chunk]:
    """The chunks of a round, for workers with this engine inside.

    Clients of one size form a merge group that is cut into chunks: they cost about the same, and can be stacked. On a
    GPU chunks take the tasks as they come: widths side by side fill it better.
    """
    size = max(math.ceil(len(tasks) / (max_chunks or MAX_CHUNKS[inner])), MIN_CLIENTS[inner])
    groups: dict[MergeGroup, list[int]] = {}
    for number, task in enumerate(tasks):
        group = () if inner == "cuda" else tuple(task.index.counts.items())
        groups.setdefault(group, []).append(number)
    cut = [
        (group, tuple(numbers[start : start + size]))
        for group, numbers in groups.items()
        for start in range(0, len(numbers), size)
    ]
    return [Chunk(number, numbers, group) for number, (group, numbers) in enumerate(cut)]
