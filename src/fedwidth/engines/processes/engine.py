"""Several CPU workers, one thread each. Updates are added in task order, so the number of workers changes no bit.

Workers start from a clean server process that has PyTorch imported already, and each gets the trainer (model, data,
settings) once. Per round a worker is sent the sub-models of its tasks and answers with the trained ones.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait
from threading import Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedwidth.core.cohort import CohortSum
from fedwidth.core.updates import Update
from fedwidth.data import Data, Partition
from fedwidth.engines.faults import describe, named
from fedwidth.engines.plain_index import plain, restored
from fedwidth.engines.sending import (
    cannot_import,
    cannot_send,
    cannot_share,
    needs_script,
    script_unseen,
    sent_once,
)
from fedwidth.engines.serial import add, train_named
from fedwidth.errors import ClientError, OptionError
from fedwidth.methods import Reference, Task
from fedwidth.objectives import Objective
from fedwidth.plan.plan import Plan
from fedwidth.settings import Settings
from fedwidth.training.client import Trainer
from fedwidth.training.rounds import Coming, Report, Watch

Array = np.ndarray[Any, np.dtype[Any]]

Packed = dict[str, tuple[Array, torch.dtype, tuple[int, ...]]]
"""Tensors as (bytes, dtype, shape)."""

AHEAD = 8
"""Tasks for each worker in one stretch."""

MAX_DEATHS = 3
"""Times workers may die without any client having been trained in between."""

_trainer: Trainer | None = None
"""In a worker process: what it trains with."""


class ProcessEngine:
    """Trains the tasks of a round in worker processes."""

    def __init__(self, trainer: Trainer, workers: int) -> None:
        if (reason := cannot_send(trainer.model)) is not None:
            raise OptionError(f"the model cannot be sent to worker processes ({reason}); use engine = 'serial'")
        if (reason := cannot_share(trainer) or cannot_import(trainer)) is not None:
            raise OptionError(f"{reason}; use engine = 'serial'")
        self.trainer = trainer
        self._without_script = not needs_script(trainer)
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def run(
        self,
        state: Mapping[str, Tensor],
        tasks: Sequence[Task],
        round: int,
        *,
        coming: Coming | None = None,
        watch: Watch | None = None,
    ) -> tuple[list[CohortSum], Report]:
        """Train all tasks and add their updates in task order."""
        del coming, watch
        sums: dict[str, CohortSum] = {}
        facts: list[_Facts] = []
        deaths = 0
        while len(facts) < len(tasks):
            counted = len(facts)
            try:
                self._go_on(state, tasks, round, sums=sums, facts=facts)
            except BrokenProcessPool as error:
                # Killed, perhaps for its memory. Who is in the sums already stays there, the others train (again).
                self.close()
                deaths = 1 if len(facts) > counted else deaths + 1
                where = describe("train", round, tasks[len(facts)])
                if deaths == MAX_DEATHS:
                    raise ClientError(
                        f"{where} or a later one: worker processes died {deaths} times (killed, or out of memory); "
                        "use fewer workers or engine = 'serial'"
                    ) from error
                warnings.warn(f"{where}: a worker process died and is replaced", stacklevel=2)
        kept = {task.client: _unpack_all(f.kept) for task, f in zip(tasks, facts, strict=True) if f.kept}
        passes, losses = tuple(f.passes for f in facts), tuple(f.loss for f in facts)
        return list(sums.values()), Report(passes, losses, kept=kept)

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _go_on(
        self,
        state: Mapping[str, Tensor],
        tasks: Sequence[Task],
        round: int,
        *,
        sums: dict[str, CohortSum],
        facts: list[_Facts],
    ) -> None:
        """Train the tasks that have no facts yet; sums and facts grow by each that arrives."""
        for task, future in self._submitted(state, tasks[len(facts) :], round):
            sub, fact = future.result()
            labels = None if fact.labels is None else torch.from_numpy(fact.labels)
            with named("add", round, task):
                reports = _unpack_all(fact.reports)
                update = Update(_unpack(sub), task.part, fact.weight, labels, task.client, reports)
                add(sums, task, update, copy=False)
            facts.append(fact)

    def _submitted(
        self, state: Mapping[str, Tensor], tasks: Sequence[Task], round: int
    ) -> Iterator[tuple[Task, Future[tuple[Packed, _Facts]]]]:
        """Every task and its future, in task order. Sub-models are sent a stretch of tasks ahead, not all at once:
        memory does not grow with the clients of a round. In a stretch the largest go first, so that no worker waits
        for a late large one.
        """
        if self._pool is None:
            self._pool = _start_pool(self.trainer, self.workers)
        waiting = Counter(task.part.key for task in tasks)
        packed: dict[str, Packed] = {}
        sent: deque[list[tuple[Task, Future[tuple[Packed, _Facts]]]]] = deque()
        for start in range(0, len(tasks), AHEAD * self.workers):
            stretch = tasks[start : start + AHEAD * self.workers]
            futures = {}
            for place in sorted(range(len(stretch)), key=lambda n: -stretch[n].capacity):
                task, key = stretch[place], stretch[place].part.key
                if key not in packed:
                    with named("cut", round, task):
                        packed[key] = _pack(task.part.cut(state, self.trainer.plan))
                light = _LightTask.of(task, self.trainer.cut_sent(task))
                with script_unseen(self._without_script):  # a worker may be started here
                    futures[place] = self._pool.submit(_train, packed[key], light, round)
                waiting[key] -= 1
                if not waiting[key]:
                    del packed[key]
            sent.append([(task, futures[place]) for place, task in enumerate(stretch)])
            if len(sent) > 1:
                yield from sent.popleft()
        for stretch_sent in sent:
            yield from stretch_sent


def _start_pool(trainer: Trainer, workers: int) -> ProcessPoolExecutor:
    known = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in known else "spawn")
    if "forkserver" in known:
        # An optimiser's first step imports hundreds of modules of PyTorch's compiler: once here, not in every worker.
        context.set_forkserver_preload(["fedwidth.engines.processes", "torch._dynamo"])
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=sent_once(trainer))


def _begin(
    model: nn.Module,
    plan: Plan,
    data: Data,
    partition: Partition,
    settings: Settings,
    objective: Objective,
    method: Reference,
) -> None:
    """In a worker: keep what every task needs."""
    global _trainer
    # Ctrl-C reaches every process of a terminal, but only the main one decides what happens to the round.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _trainer = Trainer(model, plan, data, partition, method.find(), settings, objective=objective)


def leave_with_parent() -> None:
    """In a worker: end when the main process is gone; a killed one cannot tell its workers to."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _train(sub: Packed, light: _LightTask, round: int) -> tuple[Packed, _Facts]:
    """In a worker: train one task."""
    assert _trainer is not None
    task = Task(light.client, light.capacity, restored(light.part, _trainer.plan), light.place)
    trained = train_named(_trainer, _unpack(sub), task, round, _unpack_all(light.sent))
    update = trained.update
    labels = None if update.labels is None else update.labels.numpy()
    beside = _pack_all(update.reports), _pack_all(trained.kept)
    return _pack(update.sub), _Facts(update.weight, labels, trained.passes, trained.loss, *beside)


@dataclass(frozen=True)
class _LightTask:
    """A task without the plan, which workers have already."""

    client: int
    capacity: float
    place: int
    part: Any
    sent: dict[str, Packed | float]

    @classmethod
    def of(cls, task: Task, sent: Mapping[str, Mapping[str, Tensor] | float]) -> _LightTask:
        return cls(task.client, task.capacity, task.place, plain(task.part), _pack_all(sent))


@dataclass(frozen=True)
class _Facts:
    """What a client reports beside its tensors."""

    weight: float
    labels: Array | None
    passes: int
    loss: float
    reports: dict[str, Any]
    kept: dict[str, Any]


def _pack_all(tensors: Mapping[str, Mapping[str, Tensor] | float]) -> dict[str, Any]:
    """Tensors by name within a name; numbers stay numbers."""
    return {name: _pack(value) if isinstance(value, Mapping) else value for name, value in tensors.items()}


def _unpack_all(packed: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `_pack_all`."""
    return {name: _unpack(value) if isinstance(value, dict) else value for name, value in packed.items()}


def _pack(tensors: Mapping[str, Tensor]) -> Packed:
    """Tensors as plain bytes: unlike shared tensors they need no file descriptor each."""
    return {
        name: (tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape))
        for name, tensor in tensors.items()
    }


def _unpack(packed: Packed) -> dict[str, Tensor]:
    return {
        name: torch.from_numpy(raw.copy()).view(dtype).reshape(shape) for name, (raw, dtype, shape) in packed.items()
    }
