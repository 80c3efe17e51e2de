"""An engine with several CPU workers. Updates are added in task order, so the number of workers changes no bit.

Workers start from a clean server process that has PyTorch imported already, and each gets the trainer (model, data,
settings) once. Per round a worker is sent the sub-models of its tasks and answers with the trained ones.
"""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.core.tensor_bytes import TensorBytes
from fedwidth.engines.faults import describe, error_context
from fedwidth.engines.processes.startup import (
    needs_script,
    networks_of,
    script_hidden,
    startup_arguments,
    why_not_import,
    why_not_send,
    why_not_share,
    worker_context,
)
from fedwidth.engines.processes.worker import EncodedTask, EncodedUpdate, start_worker, train_encoded
from fedwidth.engines.serial import add_update
from fedwidth.engines.transfer import decode_nested, encode
from fedwidth.errors import ClientError, OptionError
from fedwidth.methods import Task
from fedwidth.training.client import Trainer
from fedwidth.training.engine import Engine, Report, RoundRequest, RoundResult

TASKS_AHEAD = 8
"""The number of tasks for each worker that are sent at a time."""

MAX_DEATHS = 3
"""How often workers may die without any client having been trained in between."""

StartPool = Callable[[Trainer, int], Executor]
"""Starts so many worker processes, each with what the trainer holds."""


def start_pool(trainer: Trainer, workers: int) -> ProcessPoolExecutor:
    """Start so many worker processes for a trainer."""
    context = worker_context("fedwidth.engines.processes.worker")
    return ProcessPoolExecutor(
        workers, mp_context=context, initializer=start_worker, initargs=startup_arguments(trainer)
    )


class ProcessEngine(Engine):
    """Trains the tasks of a round in worker processes."""

    def __init__(
        self,
        trainer: Trainer,
        workers: int,
        *,
        start_pool: StartPool = start_pool,
        tasks_ahead: int = TASKS_AHEAD,
    ) -> None:
        if (reason := why_not_send(networks_of(trainer))) is not None:
            raise OptionError(f"the model cannot be sent to worker processes ({reason}); use engine = 'serial'")
        if (reason := why_not_share(trainer) or why_not_import(trainer)) is not None:
            raise OptionError(f"{reason}; use engine = 'serial'")
        self.trainer, self.workers = trainer, workers
        self._without_script = not needs_script(trainer)
        self._start_pool, self._at_a_time = start_pool, tasks_ahead * workers
        self._pool: Executor | None = None

    def train_round(self, request: RoundRequest) -> RoundResult:
        """Train all tasks and add their updates in task order; workers that die are replaced."""
        state, tasks, round = request.state, request.tasks, request.round
        done = _Done()
        deaths = 0
        while len(done.losses) < len(tasks):
            counted = len(done.losses)
            try:
                self._train_rest(state, tasks, round, done)
            except BrokenProcessPool as error:
                # Killed, perhaps for its memory. Who is in the sums already stays there, the others train (again).
                self.close()
                deaths = 1 if len(done.losses) > counted else deaths + 1
                where = describe("train", round, tasks[len(done.losses)])
                if deaths == MAX_DEATHS:
                    raise ClientError(
                        f"{where} or a later one: worker processes died {deaths} times (killed, or out of memory); "
                        "use fewer workers or engine = 'serial'"
                    ) from error
                warnings.warn(f"{where}: a worker process died and is replaced", stacklevel=2)
        return list(done.sums.values()), Report(tuple(done.passes), tuple(done.losses), kept=done.kept)

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _train_rest(self, state: Mapping[str, Tensor], tasks: Sequence[Task], round: int, done: _Done) -> None:
        """Train the tasks that are not done yet, and add each as it is."""
        for task, future in self._submit(state, tasks[len(done.losses) :], round):
            done.add(task, future.result(), round)

    def _submit(
        self, state: Mapping[str, Tensor], tasks: Sequence[Task], round: int
    ) -> Iterator[tuple[Task, Future[EncodedUpdate]]]:
        """Send the tasks to workers; yields each with its future, in task order.

        They are sent a stretch at a time, not all at once, so that memory does not grow with the clients of a round. In
        a stretch the largest go first, so that no worker waits for a late large one.
        """
        if self._pool is None:
            self._pool = self._start_pool(self.trainer, self.workers)
        waiting = Counter(task.part.key for task in tasks)
        subs: dict[str, dict[str, TensorBytes]] = {}
        sent: deque[list[tuple[Task, Future[EncodedUpdate]]]] = deque()
        for start in range(0, len(tasks), self._at_a_time):
            stretch = tasks[start : start + self._at_a_time]
            futures = {}
            for number in sorted(range(len(stretch)), key=lambda n: -stretch[n].capacity):
                task, key = stretch[number], stretch[number].part.key
                if key not in subs:
                    with error_context("cut", round, task):
                        subs[key] = encode(task.part.cut(state, self.trainer.plan))
                encoded = EncodedTask.of(task, self.trainer.cut_sent(task))
                with script_hidden(self._without_script):  # a worker may be started here
                    futures[number] = self._pool.submit(train_encoded, subs[key], encoded, round)
                waiting[key] -= 1
                if not waiting[key]:
                    del subs[key]
            sent.append([(task, futures[number]) for number, task in enumerate(stretch)])
            if len(sent) > 1:
                yield from sent.popleft()
        for stretch_sent in sent:
            yield from stretch_sent


@dataclass
class _Done:
    """What has been trained of a round so far, in task order."""

    sums: dict[str, CohortSum] = field(default_factory=dict)
    passes: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    kept: dict[int, dict[str, dict[str, Tensor]]] = field(default_factory=dict)
    """What clients keep for themselves, by client, name and tensor."""

    def add(self, task: Task, answer: EncodedUpdate, round: int) -> None:
        """Add a worker's answer to a task."""
        with error_context("add", round, task):
            add_update(self.sums, task, answer.update(task), copy=False)
        self.passes.append(answer.passes)
        self.losses.append(answer.loss)
        if answer.kept:
            self.kept[task.client] = decode_nested(answer.kept, copy=True)
