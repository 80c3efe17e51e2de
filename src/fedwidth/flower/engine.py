"""An engine whose clients are Flower nodes. Same tasks, same sums as every other engine: answers are added in task
order, whatever order they come in.

A client that is late, gone, failed or sends what must not count is left out and named; the round goes on with the
others. Where fewer than `least` remain, nothing is aggregated: the server repeats the round (`TooFewAnswers`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.core.submodel import SubState, extract
from fedwidth.engines.serial import add
from fedwidth.errors import ClientError, UpdateError
from fedwidth.flower.bounds import UNREAD, bound_replies
from fedwidth.flower.exchange import Exchange, error_of, never_came
from fedwidth.flower.patience import Patience
from fedwidth.flower.printable import printable
from fedwidth.flower.records import Answer, Limits, read_answer, size_of, task_arrays, task_record
from fedwidth.methods import Task
from fedwidth.training.client import Trainer
from fedwidth.training.rounds import Coming, Report, Watch


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
    enough: int | None = None
    """Answers with which a round ends at once, where more clients are asked than are needed; None: those of all."""
    quorum: float = 1.0
    """Share of the wanted answers after which the others are waited for only as long again."""
    patience: float = 60.0
    """Seconds that they are waited for at least."""
    seconds: float = 600.0
    """How long a round waits for answers at most."""
    limits: Limits = field(default_factory=Limits)
    samples_of: Callable[[int], int] | None = None
    """Samples that a client may claim, where that differs from client to client."""
    log: Callable[[str], None] = print
    noted: Callable[[int, Collection[int], Collection[int]], None] = lambda *_: None
    """Told of a round which clients were late and which answered."""

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
        absent = {task.client: "it is not connected" for task in tasks if task.client not in nodes}
        by_node = {nodes[task.client]: task for task in tasks if task.client in nodes}
        tokens = {node: secrets.token_hex(16) for node in by_node}
        contents = {
            node: task_record(
                task, arrays[task.index.key], token=tokens[node], round=round, sent=self.trainer.cut_sent(task)
            )
            for node, task in by_node.items()
        }
        sums, refused, late, answered = _Sums(tasks), set[int](), set[int](), set[int]()
        tasks_out = Exchange(self.grid)
        tasks_out.send(contents, "train", seconds=self.seconds, group=str(round))
        unsent = [task.client for node, task in by_node.items() if node not in tasks_out.waiting]
        absent |= dict.fromkeys(unsent, "it could not be sent its task: it has just been revoked or is gone")
        bound_replies(self.grid, max(map(self._most_bytes, subs.values())), seconds=self.seconds)
        enough = min(self.enough or len(tasks), len(tasks))
        patience = Patience(enough, self.quorum, least=self.patience, most=self.seconds)

        def is_patient() -> bool:
            goes_on = patience.goes_on(len(answered))
            if goes_on and (why := patience.why(len(answered))):
                waiting = ", ".join(_named(by_node[node], node) for node in sorted(tasks_out.waiting))
                self.log(f"round {round + 1}: {why} for {waiting}")
            return goes_on

        for node, reply in tasks_out.replies(is_patient):
            task = by_node[node]
            try:
                if never_came(reply):
                    late.add(task.client)
                    continue
                sums.take(task, self._read(reply, task, subs[task.index.key], tokens[node], round))
                answered.add(task.client)
            except (UpdateError, ClientError) as error:
                absent[task.client] = printable(error)
                if isinstance(error, UpdateError):
                    refused.add(task.client)
            if len(answered) == enough:
                break
        unanswered = {by_node[node].client for node in tasks_out.waiting}
        if len(answered) < enough:
            late |= unanswered
        else:
            absent |= dict.fromkeys(unanswered, f"it was not waited for: {enough} answers are enough")
        absent |= self._why_late(late, nodes, patience.seconds)
        for client, why in absent.items():
            self.log(f"round {round + 1}: client {client} (node {nodes.get(client, '-')}) is left out: {why}")
        self.noted(round, late, answered)
        if len(answered) < max(1, self.least):
            raise TooFewAnswers(
                f"round {round + 1} has {len(answered)} answers, but needs at least {max(1, self.least)}"
            )
        return sums.finish(absent, frozenset(refused))

    def close(self) -> None:
        """Nodes outlive the run."""

    def _why_late(self, late: Collection[int], nodes: Mapping[int, int], seconds: float) -> dict[int, str]:
        """Why each of these clients has not answered, as far as one can know."""
        if not late:
            return {}
        connected = {node.node_id for node in self.grid.get_nodes()}
        reasons = {
            True: "it is connected, but too slow or its trainer hangs",
            False: "its connection was lost",
        }
        return {
            client: f"no answer within {seconds:.3g} s: {reasons[nodes[client] in connected]}"
            for client in sorted(late)
        }

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
            raise UpdateError(error) if UNREAD in error else ClientError(error)
        if (size := size_of(reply.content)) > (most := self._most_bytes(sent)):
            raise UpdateError(f"its answer has {size:,} bytes, more than {most:,}")
        limits = self.limits
        if self.samples_of is not None:
            most = self.samples_of(task.client)
            if not most:
                raise UpdateError("it is no longer enrolled")
            limits = replace(limits, samples=min(limits.samples, most))
        return read_answer(
            reply.content,
            task,
            sent,
            token=token,
            round=round,
            settings=self.trainer.settings.server,
            limits=limits,
            trainer=self.trainer,
        )

    def _most_bytes(self, sent: SubState) -> int:
        """What an answer may have: the tensors, as often as the method asks for them, and for each some words."""
        local = self.trainer.rule.local
        each = sum(t.numel() * t.element_size() + 2048 for t in sent.values())
        return each * (1 + len(local.adds) + len(local.own)) + self.limits.overhead


def _named(task: Task, node: int) -> str:
    return f"client {task.client} (node {node})"


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

    def finish(self, absent: Mapping[int, str], refused: frozenset[int]) -> tuple[list[CohortSum], Report]:
        """The sums of all that answered."""
        for task in self.tasks[self._added :]:
            if task.client in self._early:
                self._add(task)
        passes, losses = zip(*self._facts, strict=True)
        return list(self._sums.values()), Report(passes, losses, absent, refused, kept=self._kept)

    def _add(self, task: Task) -> None:
        answer = self._early.pop(task.client)
        add(self._sums, task, answer.update, copy=False)
        if answer.kept:
            self._kept[task.client] = answer.kept
        self._facts.append((answer.passes, answer.loss))
