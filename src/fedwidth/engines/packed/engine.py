"""The engine of packed sweeps: many runs of one model train as one batch on one device.

All runs advance in step. The clients of all of them train together: as stacks, which suits small models
(`packed_stacks`), or side by side in slots, which suits large ones (`packed_slots`). Equal work is done once: two runs
with one state that hand the same sub-models to the same clients get one list of sums.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.core.submodel import state_of
from fedwidth.engines.flat.layout import FlatState, Layout
from fedwidth.engines.packed.clients import Coming, RunRound, partition_digests
from fedwidth.engines.packed.packed_slots import PackedSlots
from fedwidth.engines.packed.packed_stacks import PackedStacks
from fedwidth.engines.slots.pool import SlotPool
from fedwidth.engines.stacks.pool import StackPool
from fedwidth.training.client import Trainer
from fedwidth.training.engine import RoundResult


class PackedTrainer(Protocol):
    """Trains the clients of several runs together, in slots or as stacks."""

    def start(self, rounds: Sequence[RunRound], coming: Coming) -> Callable[[], list[RoundResult]]:
        """Begin a round of every run; what is returned waits for it, and gives the sums and reports run by run."""

    def close(self) -> None:
        """Give the device's memory back."""


class PackedEngine:
    """Trains several runs in step, as one batch."""

    def __init__(
        self, trainers: Sequence[Trainer], *, slots: SlotPool | None = None, stacks: StackPool | None = None
    ) -> None:
        """The runs, which must go together (`limits.check_pack`), train in `slots` where some are lent, and else in
        `stacks`, which are made here unless they are given."""
        first = trainers[0]
        self.layout = Layout(first.plan, state_of(first.model), next(first.model.parameters()).dtype)
        self._trainer: PackedTrainer = (
            PackedStacks(trainers, self.layout, stacks) if slots is None else PackedSlots(trainers, self.layout, slots)
        )
        partitions = partition_digests(trainers)
        self._shared = {id(trainer): _what_counts(trainer, partitions[id(trainer.partition)]) for trainer in trainers}

    def start(self, rounds: Sequence[RunRound], coming: Coming = lambda: ()) -> Callable[[], list[RoundResult]]:
        """Begin to train a round of every run, and prepare the coming one; what is returned waits for the results.

        Until it is called the device may be busy with the round, and the caller with something else. Runs that do the
        same work get the same sums, as one object.
        """
        keys = [self._key(round) for round in rounds]
        distinct = dict(zip(keys, rounds, strict=True))
        end = self._trainer.start(list(distinct.values()), coming)

        def results() -> list[RoundResult]:
            trained = dict(zip(distinct, end(), strict=True))
            return [trained[key] for key in keys]

        return results

    def close(self) -> None:
        """Give the device's memory back."""
        self._trainer.close()

    def flatten(self, state: Mapping[str, Tensor]) -> FlatState:
        """A state as one vector, laid out like the states of the other runs."""
        return self.layout.flatten(state)

    def _key(self, round: RunRound) -> object:
        """What the outcome of a round depends on. States are compared as objects: equal work leaves one object."""
        tasks = tuple(
            (task.client, task.capacity, task.cohort, _held_key(task.part), _sent_key(task.sends))
            for task in round.tasks
        )
        return id(round.state), round.round, self._shared[id(round.trainer)], tasks


def _held_key(part: Any) -> object:
    """What a part holds beside slices of the state; other kinds may hold anything, and are compared as objects."""
    return None if isinstance(part, Index) else id(part)


def _sent_key(sends: Mapping[str, Mapping[str, Tensor] | float]) -> object:
    """What a client is sent beside its sub-model; tensors are compared as objects."""
    return tuple((name, id(value) if isinstance(value, Mapping) else value) for name, value in sends.items())


def _what_counts(trainer: Trainer, partition: bytes) -> str:
    """The settings and the partition that training depends on besides state, tasks and round, as text."""
    settings = trainer.settings
    facts = [settings.seed, settings.rounds, asdict(settings.training), asdict(settings.server)]
    return json.dumps([partition.hex(), *facts], sort_keys=True, default=str)
