"""What runs in a worker process: it keeps the trainer it was started with and trains one task after the other."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from threading import Thread
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.core.tensor_bytes import TensorBytes
from fedwidth.core.updates import Update
from fedwidth.data import Data, Partition
from fedwidth.engines.serial import train_task
from fedwidth.engines.transfer import decode, decode_nested, decode_part, encode, encode_nested, encode_part
from fedwidth.errors import ClientError
from fedwidth.importing import one_line
from fedwidth.methods import Reference, Task
from fedwidth.objectives import Objective
from fedwidth.plan.plan import Plan
from fedwidth.settings import Settings
from fedwidth.training.client import Trained, Trainer

Nested = Mapping[str, Mapping[str, TensorBytes] | float]
"""Groups of encoded tensors by name, or numbers."""

_trainer: Trainer | None = None
"""The trainer of this process, if it is a worker."""
_failure = ""
"""The reason why this worker has none."""


@dataclass(frozen=True)
class EncodedTask:
    """A task as it is sent to a worker, which has the plan already."""

    client: int
    capacity: float
    place: int
    part: Any
    sent: Nested
    """What the client is sent beside its sub-model."""
    given: Mapping[str, TensorBytes]

    @classmethod
    def of(cls, task: Task, sent: Mapping[str, Mapping[str, Tensor] | float]) -> EncodedTask:
        """A task and what its client is sent beside its sub-model."""
        own = encode_part(task.part), encode_nested(sent), encode(task.given)
        return cls(task.client, task.capacity, task.place, *own)

    def task(self, plan: Plan) -> Task:
        """The task, for a worker's plan."""
        given = decode(self.given, copy=True)
        return Task(self.client, self.capacity, decode_part(self.part, plan), self.place, given=given)


@dataclass(frozen=True)
class EncodedUpdate:
    """What a worker answers: a trained client's tensors and what it reports beside them."""

    sub: Mapping[str, TensorBytes]
    weight: float
    labels: TensorBytes | None
    passes: int
    loss: float
    reports: Nested
    kept: Nested
    """What the client keeps for itself."""

    @classmethod
    def of(cls, trained: Trained) -> EncodedUpdate:
        """What a client has trained."""
        update = trained.update
        return cls(
            sub=encode(update.sub),
            weight=update.weight,
            labels=None if update.labels is None else TensorBytes.of(update.labels),
            passes=trained.passes,
            loss=trained.loss,
            reports=encode_nested(update.reports),
            kept=encode_nested(trained.kept),
        )

    def update(self, task: Task) -> Update:
        """The update, for the task it answers."""
        sub, reports = decode(self.sub, copy=True), decode_nested(self.reports, copy=True)
        labels = None if self.labels is None else self.labels.tensor(copy=True)
        return Update(sub, task.part, self.weight, labels, task.client, reports)


def start_worker(
    model: nn.Module,
    plan: Plan,
    data: Data,
    partition: Partition,
    settings: Settings,
    objective: Objective,
    method: Reference,
    public: Data | None = None,
) -> None:
    """Make this process a worker: keep what every task needs."""
    global _trainer, _failure
    # Ctrl-C reaches every process of a terminal, but only the main one decides what happens to the round.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    try:
        _trainer = Trainer(model, plan, data, partition, method.find(), settings, objective=objective, public=public)
    except Exception as error:  # said with the first task: a worker that does not start is only known to be dead
        _failure = f"a worker process could not start: {type(error).__name__}: {one_line(error)}"


def leave_with_parent() -> None:
    """End this worker when the main process is gone; a killed one cannot tell its workers to end."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def train_encoded(sub: Mapping[str, TensorBytes], encoded: EncodedTask, round: int) -> EncodedUpdate:
    """Train one task in this worker, from the tensors of its sub-model."""
    if _trainer is None:
        raise ClientError(_failure)
    task = encoded.task(_trainer.plan)
    sent = decode_nested(encoded.sent, copy=True)
    return EncodedUpdate.of(train_task(_trainer, decode(sub, copy=True), task, round, sent))
