"""Packed sweeps: many runs of one shape train as one batch on one device, so that a whole table is one job.

All runs advance in step. The clients of all of them train together: as stacks, which suits small models
(`packed_stacks`), or side by side in slots, which suits large ones (`packed_slots`). Work that is equal is done once:
two runs with one state that hand the same sub-models to the same clients get one list of sums.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Protocol

from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.core.submodel import state_of
from fedwidth.engines.flat.layout import FlatState, Layout
from fedwidth.engines.packed.clients import Coming, RunRound, who_has_what
from fedwidth.engines.packed.limits import in_slots, why_not_pack
from fedwidth.engines.packed.slots import SlotPack
from fedwidth.engines.packed.stacks import StackPack
from fedwidth.errors import OptionError
from fedwidth.training.client import Trainer
from fedwidth.training.rounds import Report

Outcome = tuple[Sequence[CohortSum], Report]
"""The sums of a run's cohorts and what its clients reported."""


class Way(Protocol):
    """A way to train the clients of several runs."""

    def train(self, parts: Sequence[RunRound], coming: Coming) -> list[Outcome]:
        """The sums and what the clients reported, run by run."""

    def close(self) -> None:
        """Give the device's memory back."""


class Pack:
    """The engine of a packed sweep."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        first = trainers[0]
        reason = why_not_pack(trainers)
        if reason:
            raise OptionError(f"these runs cannot train as one batch: {reason}")
        self.layout = Layout(first.plan, state_of(first.model), next(first.model.parameters()).dtype)
        self._way: Way = (SlotPack if in_slots(first) else StackPack)(trainers, self.layout)
        partitions = who_has_what(trainers)
        self._shared = {id(trainer): _what_counts(trainer, partitions[id(trainer.partition)]) for trainer in trainers}

    def run(self, parts: Sequence[RunRound], coming: Coming = lambda: ()) -> list[Outcome]:
        """Train a round of every run, and meanwhile prepare the one that comes.

        Runs that do the same work get the same sums, as one object.
        """
        keys = [self._key(part) for part in parts]
        distinct = dict(zip(keys, parts, strict=True))
        trained = dict(zip(distinct, self._way.train(list(distinct.values()), coming), strict=True))
        return [trained[key] for key in keys]

    def close(self) -> None:
        """Give the device's memory back."""
        self._way.close()

    def flatten(self, state: Mapping[str, Tensor]) -> FlatState:
        """A state as one vector, as the other states of the pack."""
        return self.layout.flatten(state)

    def _key(self, part: RunRound) -> object:
        """What the outcome of a part depends on. States are compared as objects: equal work leaves one object."""
        tasks = tuple((task.client, task.capacity, task.cohort, _sent(task.sends)) for task in part.tasks)
        return id(part.state), part.round, self._shared[id(part.trainer)], tasks


def _sent(sends: Mapping[str, Mapping[str, Tensor] | float]) -> object:
    """What a client is sent, compared as objects."""
    return tuple((name, id(value) if isinstance(value, Mapping) else value) for name, value in sends.items())


def _what_counts(trainer: Trainer, partition: bytes) -> str:
    """What training depends on besides state, tasks and round, as text."""
    settings = trainer.settings
    facts = [settings.seed, settings.rounds, asdict(settings.training), asdict(settings.server)]
    return json.dumps([partition.hex(), *facts], sort_keys=True, default=str)
