"""An engine whose clients are Flower nodes. Same tasks, same sums as every other engine: answers are added in task
order, whatever order they come in.

A client that is late, gone, failed or sends what must not count is left out and named; the round goes on with the
others. Where fewer than `least` remain, nothing is aggregated: the server repeats the round (`TooFewAnswers`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from torch import Tensor

from fedwidth.aggregation import CohortSum
from fedwidth.client import Trainer
from fedwidth.engines.serial import add
from fedwidth.errors import ClientError, UpdateError
from fedwidth.flower.bounds import bound_replies
from fedwidth.flower.exchange import error_of, exchange
from fedwidth.flower.records import Answer, Limits, read_answer, size_of, task_arrays, task_record
from fedwidth.methods import Task
from fedwidth.rounds import Coming, Report, Watch
from fedwidth.submodel import SubState, extract


class TooFewAnswers(ClientError):
    """A round that must be repeated."""


@dataclass
class FlowerEngine:
    """Trains the tasks of a round on the nodes of a grid."""

    grid: Grid
    trainer: Trainer
    """What the server knows of training: plan, settings and the method's local rule."""
    node_of: Callable[[], Mapping[int, int]]
    """Client number -> node id of those connected now."""
    least: int = 1
    """Answers without which a round does not count."""
    seconds: float = 600.0
    """How long a round waits for answers."""
    limits: Limits = field(default_factory=Limits)
    log: Callable[[str], None] = print

    def run(
        self,
        state: Mapping[str, Tensor],
        tasks: Sequence[Task],
        round: int,
        *,
        coming: Coming | None = None,
        watch: Watch | None = None,
    ) -> tuple[list[CohortSum], Report]:
        """Send every task its sub-model; one sum per cohort of the answers that count."""
        del coming, watch
        subs, arrays = self._cut(state, tasks)
        nodes = self.node_of()
        absent = {task.client: "it is not connected" for task in tasks}
        by_node = {nodes[task.client]: task for task in tasks if task.client in nodes}
        absent |= {task.client: f"no answer within {self.seconds:g} seconds" for task in by_node.values()}
        tokens = {node: secrets.token_hex(16) for node in by_node}
        contents = {
            node: task_record(
                task, arrays[task.index.key], token=tokens[node], round=round, sent=self.trainer.cut_sent(task)
            )
            for node, task in by_node.items()
        }
        bound_replies(self.grid, max(map(self._most_bytes, subs.values())), seconds=self.seconds)
        sums = _Sums(tasks)
        for node, reply in exchange(self.grid, contents, "train", seconds=self.seconds, group=str(round)):
            task = by_node[node]
            try:
                sums.take(task, self._read(reply, task, subs[task.index.key], tokens[node], round))
                del absent[task.client]
            except (UpdateError, ClientError) as error:
                absent[task.client] = str(error)
        for client, why in absent.items():
            self.log(f"round {round + 1}: client {client} (node {nodes.get(client, '-')}) is left out: {why}")
        answered = len(tasks) - len(absent)
        if answered < max(1, self.least):
            raise TooFewAnswers(f"round {round + 1} has {answered} answers, but needs at least {max(1, self.least)}")
        return sums.finish(absent)

    def close(self) -> None:
        """Nodes outlive the run."""

    def _cut(
        self, state: Mapping[str, Tensor], tasks: Sequence[Task]
    ) -> tuple[dict[str, SubState], dict[str, ArrayRecord]]:
        """The sub-model of every index of the round, as tensors and as sent."""
        indexes = {task.index.key: task.index for task in tasks}
        plan = self.trainer.plan
        subs = {key: extract(state, plan, index) for key, index in indexes.items()}
        return subs, {key: task_arrays(sub, plan.tied) for key, sub in subs.items()}

    def _read(self, reply: Message, task: Task, sent: SubState, token: str, round: int) -> Answer:
        if (error := error_of(reply)) is not None:
            raise ClientError(error)
        if (size := size_of(reply.content)) > (most := self._most_bytes(sent)):
            raise UpdateError(f"its answer has {size:,} bytes, more than {most:,}")
        return read_answer(
            reply.content,
            task,
            sent,
            token=token,
            round=round,
            settings=self.trainer.settings.server,
            limits=self.limits,
            trainer=self.trainer,
        )

    def _most_bytes(self, sent: SubState) -> int:
        """What an answer may have: the tensors, as often as the method asks for them, and for each some words."""
        local = self.trainer.rule.local
        each = sum(t.numel() * t.element_size() + 2048 for t in sent.values())
        return each * (1 + len(local.adds) + len(local.own)) + self.limits.overhead


class _Sums:
    """Cohort sums made in task order: an answer that comes early waits until those before it are in."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = list(tasks)
        self._early: dict[int, Answer] = {}
        self._added = 0
        self._sums: dict[str, CohortSum] = {}
        self._facts: list[tuple[int, float]] = []
        self._kept: dict[int, Mapping[str, Mapping[str, Tensor]]] = {}

    def take(self, task: Task, answer: Answer) -> None:
        """Take a client's answer."""
        self._early[task.client] = answer
        while self._added < len(self.tasks) and self.tasks[self._added].client in self._early:
            self._add(self.tasks[self._added])
            self._added += 1

    def finish(self, absent: Mapping[int, str]) -> tuple[list[CohortSum], Report]:
        """The sums of all that answered."""
        for task in self.tasks[self._added :]:
            if task.client in self._early:
                self._add(task)
        passes, losses = zip(*self._facts, strict=True)
        return list(self._sums.values()), Report(passes, losses, absent, self._kept)

    def _add(self, task: Task) -> None:
        answer = self._early.pop(task.client)
        add(self._sums, task, answer.update, copy=False)
        if answer.kept:
            self._kept[task.client] = answer.kept
        self._facts.append((answer.passes, answer.loss))
