"""The engine with Ray's workers, on one machine or many: they train chunks of clients and answer with their sums.

The state goes into Ray's object store once a round and every worker cuts its sub-models out of it. Chunks of tasks
(`ray.chunks`) are handed out by what their widths were measured to cost (`ray.scheduling`), and their sums merged in
the order of tasks (`ray.merging`): who trained what changes nothing. If a worker is lost, its chunks are trained again
by others; a chunk counts when its result is there, so no client counts twice.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import fedwidth
from fedwidth.engines.choice import choose_for_ray
from fedwidth.engines.faults import describe
from fedwidth.engines.ray.chunks import Chunk, split_round
from fedwidth.engines.ray.cluster import Cluster
from fedwidth.engines.ray.merging import OrderedMerge
from fedwidth.engines.ray.messages import ChunkResult, ChunkTasks, WorkerInfo
from fedwidth.engines.ray.scheduling import Costs, WorkerHandle, schedule
from fedwidth.engines.ray.worker_setup import WorkerSetup
from fedwidth.engines.transfer import encode
from fedwidth.errors import ClientError, FedwidthError, OptionError
from fedwidth.methods import Task
from fedwidth.settings import Settings
from fedwidth.training.client import Trainer
from fedwidth.training.engine import Engine, RoundRequest, RoundResult

MAX_LOSSES = 3
"""The number of workers that may be lost over one chunk; by then it is likely to be what kills them (too large for
memory)."""

POLL_SECONDS = 5.0
"""The time after which to look for new nodes."""

MAX_SECONDS_WITHOUT_WORKER = 120.0
"""The time without any worker after which a round fails."""


class RayEngine(Engine):
    """Trains the tasks of a round on a Ray cluster."""

    def __init__(
        self,
        trainer: Trainer,
        *,
        inner: tuple[str, str] | None = None,
        join: Callable[[Settings], Cluster] = Cluster,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`inner` is the engine inside the workers and their kind of device, where the settings shall not decide."""
        self.trainer = trainer
        self.inner, self.device = inner or choose_for_ray(trainer)
        self.costs = Costs()
        self.schedule = schedule
        """Which worker gets what next; it changes no result."""
        self.workers: list[WorkerHandle] = []
        self.lost = 0
        """The number of workers lost so far."""
        self._clock = clock
        self._calls, self._last_alive, self._why_lost = 0, time.monotonic(), ""
        self._cluster = join(trainer.settings)
        try:
            self._cluster.check_room()
            setup = WorkerSetup.of(trainer)
            self._cluster.check_store(setup.bytes)
            self._setup = self._put(setup)
            self.adjust_workers()
        except BaseException:
            self.close()
            raise

    def train_round(self, request: RoundRequest) -> RoundResult:
        """Train all tasks and merge their sums in task order; `watch` is told whenever a worker has answered."""
        state, tasks, round = request.state, request.tasks, request.round
        tied = self.trainer.plan.tied
        shared = self._cluster.ray.put(encode({name: tensor for name, tensor in state.items() if name not in tied}))
        merge = OrderedMerge(tasks, split_round(tasks, self.inner), next(iter(state.values())).device)
        samples = {chunk.number: self._samples(chunk, tasks) for chunk in merge.chunks}

        def seconds(chunk: Chunk) -> float:
            return self.costs.estimate(samples[chunk.number])

        waiting = sorted(merge.chunks, key=seconds, reverse=True)
        losses: Counter[int] = Counter()
        self._calls, self._last_alive = self._calls + 1, time.monotonic()
        for worker in self.workers:
            worker.held, worker.busy = {}, 0.0  # what an earlier round that failed has left
        self.adjust_workers()
        while not merge.complete:
            for worker, chunk in self.schedule(self.workers, waiting, seconds):
                own = [tasks[number] for number in chunk.tasks]
                sent = [self.trainer.cut_sent(task) for task in own] if any(task.sends for task in own) else ()
                message = ChunkTasks.of(own, round, self._calls, sent)
                worker.take(worker.actor.train.remote(shared, message), chunk)
            for worker, chunk, result in self._results(round):
                if result is None:
                    losses[chunk.number] += 1
                    if losses[chunk.number] == MAX_LOSSES:
                        where = describe("train", round, *(tasks[number] for number in chunk.tasks))
                        raise ClientError(
                            f"{where}: {MAX_LOSSES} Ray workers were lost (killed, or out of memory);"
                            " use fewer workers a node, with larger ray.cpus"
                        )
                    waiting.insert(0, chunk)
                    continue
                worker.busy += result.seconds
                if worker.warm:
                    self.costs.learn(samples[chunk.number], result.seconds)
                worker.warm = True
                merge.add(chunk, result)
                if request.watch is not None:
                    request.watch(merge.done, len(tasks))
        return merge.sums(), merge.report()

    def close(self) -> None:
        """End the workers, and Ray if it was started for this run."""
        for worker in self.workers:
            self._cluster.ray.kill(worker.actor)
        self.workers = []
        self._setup = None
        self._cluster.close()

    def adjust_workers(self) -> None:
        """Start workers up to the number wanted now, and let go of those too many that still wait for room.

        Nodes may have come or gone.
        """
        missing = self._cluster.wanted() - len(self.workers)
        for _ in range(missing):
            actor = self._cluster.start()
            ready = actor.prepare.remote(self._setup, self.inner, self.device)
            self.workers.append(WorkerHandle(actor, ready, clock=self._clock))
        # Ray takes a while to see that a node is gone; a worker that was meant for it waits for room.
        waiting = [worker for worker in self.workers if worker.info is None]
        for worker in waiting[: max(0, -missing)]:
            self.workers.remove(worker)
            self._cluster.ray.kill(worker.actor)

    def _samples(self, chunk: Chunk, tasks: Sequence[Task]) -> dict[float, int]:
        """The number of training samples of a chunk by capacity."""
        training, found = self.trainer.settings.training, Counter[float]()
        for task in (tasks[number] for number in chunk.tasks):
            size = self.trainer.partition.size(task.client)
            found[task.capacity] += training.steps * training.batch_size or training.epochs * size
        return dict(found)

    def _results(self, round: int) -> Iterator[tuple[WorkerHandle, Chunk, ChunkResult | None]]:
        """Wait until something happens; yields the results that have come, and None for chunks of a lost worker."""
        ray, owners = self._cluster.ray, self._owners()
        for reference in self._wait(list(owners), round):
            worker = owners[reference]
            if worker not in self.workers:
                continue  # lost, with all it held, a moment ago
            try:
                result = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise _cause(error, worker) from error
            except ray.exceptions.RayError as error:
                if getattr(error, "actor_init_failed", False):
                    raise RuntimeError(f"a worker could not start: {error}") from None
                chunks = self._drop(worker, error)
                yield from ((worker, chunk, None) for chunk in chunks)
                continue
            if worker.info is None:
                worker.info = _checked(result)
                continue
            yield worker, worker.give(reference), result

    def _owners(self) -> dict[Any, WorkerHandle]:
        """The worker that each awaited reference comes from."""
        owners = {reference: worker for worker in self.workers for reference in worker.held}
        return owners | {worker.ready: worker for worker in self.workers if worker.info is None}

    def _wait(self, awaited: list[Any], round: int) -> list[Any]:
        """The references that have been answered, at least one of them; none after some seconds, to look again."""
        done: list[Any] = []
        if awaited:
            done, _ = self._cluster.ray.wait(awaited, timeout=POLL_SECONDS)
        else:
            time.sleep(POLL_SECONDS)  # all workers are lost, and their nodes too
        now = time.monotonic()
        if any(worker.info for worker in self.workers):
            self._last_alive = now
        elif now - self._last_alive > MAX_SECONDS_WITHOUT_WORKER:
            raise RuntimeError(
                f"in round {round}, the Ray cluster had no worker for {MAX_SECONDS_WITHOUT_WORKER:.0f} s: its nodes are"
                f" gone, or other work holds their CPUs (see `ray status`){self._why_lost}"
            )
        if not done:
            self.adjust_workers()
        return done

    def _drop(self, worker: WorkerHandle, error: Exception) -> list[Chunk]:
        """Let a lost worker go and start another where there is room; returns the chunks it held."""
        self.workers.remove(worker)
        self._cluster.ray.kill(worker.actor)
        self._why_lost = f"; the last one was lost: {' '.join(str(error).split())}"
        if worker.info is not None:  # one that never began may have been sent to a node that is gone: others come later
            self.lost += 1
            warnings.warn(f"a Ray worker was lost ({worker.info}); others train what it held", stacklevel=2)
            self.adjust_workers()
        return list(worker.held.values())

    def _put(self, setup: WorkerSetup) -> Any:
        """Put what every worker needs into the object store; returns its reference."""
        try:
            return self._cluster.ray.put(setup)
        except (TypeError, AttributeError, ValueError) as error:  # what pickling fails with
            reason = str(error).strip().splitlines()[0]
            raise OptionError(f"the model cannot be sent to Ray's workers ({reason}); use engine = 'serial'") from error


def _cause(error: Any, worker: WorkerHandle) -> Exception:
    """What went wrong in a worker, as it was raised there."""
    cause: Exception = error.cause if isinstance(error.cause, Exception) else error
    if worker.info is None and not isinstance(cause, FedwidthError):
        last = str(cause).strip().splitlines()[-1]
        return OptionError(
            f"a Ray worker cannot take the model or the data ({last}); what they are made of must be installed on every"
            " node"
        )
    return cause


def _checked(info: WorkerInfo) -> WorkerInfo:
    """Refuse a worker that has other versions: its results could differ."""
    here = fedwidth.__version__, torch.__version__.split("+")[0]
    there = info.fedwidth, info.torch.split("+")[0]
    if here != there:
        raise OptionError(
            f"{info.node} has fedwidth {there[0]} and torch {there[1]}, this machine {here[0]} and {here[1]}:"
            " install the same on every node"
        )
    return info
