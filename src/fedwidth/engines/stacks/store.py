"""The stacks a crew has made, each with its captured steps, and where on the device it trains."""

from __future__ import annotations

from collections.abc import Sequence

from fedwidth.engines.capture import Place
from fedwidth.engines.faults import free_memory
from fedwidth.engines.stacks.groups import Portion
from fedwidth.engines.stacks.samples import Samples
from fedwidth.engines.stacks.stack import Stack
from fedwidth.training.client import Trainer

MAX_STACKS = 64
"""That are kept."""


class Stock:
    """Stacks, made when they are first asked for."""

    def __init__(self, trainer: Trainer, samples: Samples, *, places: int) -> None:
        self.trainer, self.samples = trainer, samples
        self._stacks: dict[object, Stack] = {}
        self._places = [Place.on(trainer.device) for _ in range(places)]

    def stack(self, portion: Portion, *, beside: int, layered: bool, merge: bool = True) -> Stack:
        """The stack of a portion; those made one after the other are in different places of the first `beside`."""
        key = _key(portion, merge)
        if key not in self._stacks:
            self._stacks[key] = Stack(
                self.trainer,
                portion.lot.tasks[0],
                portion.group.sub,
                self.samples,
                rows=portion.room,
                place=self._places[len(self._stacks) % beside],
                layered=layered,
                merge=merge,
            )
        return self._stacks[key]

    def has_others(self, wave: Sequence[Portion]) -> bool:
        """Whether there are stacks that these portions do not need."""
        return bool(self._stacks.keys() - {_key(portion) for portion in wave})

    def make_room(self, wave: Sequence[Portion]) -> None:
        """Let go of all stacks if there would be too many."""
        if len(self._stacks.keys() | {_key(portion) for portion in wave}) > MAX_STACKS:
            self.clear()

    def clear(self, *, places: bool = False) -> None:
        """Let go of all stacks; `places` also of the streams, which a capture that failed may have left half used.

        Steps are captured in other memory from then on: that of graphs which are all gone must not be used again.
        """
        free_memory(self.trainer.device, self._stacks.clear)
        self._places = [Place.on(self.trainer.device) if places else place.renewed() for place in self._places]


def _key(portion: Portion, merge: bool = True) -> object:
    """What a stack was made for."""
    return portion.group.shape, portion.room, portion.number, merge
