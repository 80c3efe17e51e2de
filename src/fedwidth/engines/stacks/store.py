"""The stacks a pool has made, kept with their captured steps, and the streams on which they train."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedwidth.capture import GraphStream
from fedwidth.engines.memory import free_memory
from fedwidth.engines.stacks.groups import GroupSegment
from fedwidth.engines.stacks.samples import TrainingSamples
from fedwidth.engines.stacks.stack import Stack
from fedwidth.training.client import Trainer

MAX_STACKS = 64
"""The number of stacks that are kept for later rounds."""

MakeStack = Callable[..., Stack]
"""Makes a stack from the arguments of `Stack`."""


class StackStore:
    """Stacks, each made when it is first asked for."""

    def __init__(
        self, trainer: Trainer, samples: TrainingSamples, *, streams: int, make_stack: MakeStack = Stack
    ) -> None:
        self.trainer, self.samples, self._make_stack = trainer, samples, make_stack
        self._stacks: dict[object, Stack] = {}
        self._streams = [GraphStream.on(trainer.device) for _ in range(streams)]

    def stack(self, segment: GroupSegment, *, concurrent: int, stacked_layers: bool, merge: bool = True) -> Stack:
        """The stack of a segment; stacks made one after the other take turns on the first `concurrent` streams."""
        key = _key_of(segment, merge)
        if key not in self._stacks:
            self._stacks[key] = self._make_stack(
                self.trainer,
                segment.clients.tasks[0],
                segment.group.sub,
                self.samples,
                rows=segment.room,
                stream=self._streams[len(self._stacks) % concurrent],
                stacked_layers=stacked_layers,
                merge=merge,
                given=segment.group.shape[2],
            )
        return self._stacks[key]

    def has_others(self, wave: Sequence[GroupSegment]) -> bool:
        """Whether there are stacks that the segments of a wave do not need."""
        return bool(self._stacks.keys() - {_key_of(segment) for segment in wave})

    def make_room(self, wave: Sequence[GroupSegment]) -> None:
        """Let go of all stacks if those of a wave would make them too many."""
        if len(self._stacks.keys() | {_key_of(segment) for segment in wave}) > MAX_STACKS:
            self.clear()

    def clear(self, *, streams: bool = False) -> None:
        """Let go of all stacks; with `streams` also of the streams, which a failed capture may have left half used.

        Steps are captured in other memory from then on: that of graphs which are all gone must not be used again.
        """
        free_memory(self.trainer.device, self._stacks.clear)
        device = self.trainer.device
        self._streams = [GraphStream.on(device) if streams else stream.with_new_memory() for stream in self._streams]


def _key_of(segment: GroupSegment, merge: bool = True) -> object:
    """What a stack is made for: segments with equal keys can train in it one after the other."""
    return segment.group.shape, segment.room, segment.stack_number, merge
