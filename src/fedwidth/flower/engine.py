"""The engine that trains a round's tasks on Flower nodes, with the same sums as every other engine.

Answers are added in the order of the tasks, whatever order they arrive in. A client that is late, gone, failed or sends
what must not count is left out and named, and the round goes on with the others. Where fewer than `min_answers` remain,
nothing is aggregated and the server repeats the round (`TooFewAnswers`).
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
from fedwidth.engines.serial import add_update
from fedwidth.errors import ClientError, UpdateError
from fedwidth.flower.exchange import Exchange, error_of, never_came
from fedwidth.flower.patience import Patience
from fedwidth.flower.printable import printable
from fedwidth.flower.records import CheckedAnswer, Limits, read_answer, size_of, task_arrays, task_record
from fedwidth.flower.reply_bounds import UNREAD, bound_replies
from fedwidth.methods import Task
from fedwidth.training.client import Trainer
from fedwidth.training.engine import Engine, Report, RoundRequest, RoundResult


class TooFewAnswers(ClientError):
    """So few clients have answered that the round must be repeated."""


@dataclass
class FlowerEngine(Engine):
    """Trains the tasks of a round on the nodes of a grid."""

    grid: Grid
    trainer: Trainer
    """Knows what the server must know of training: the plan, the settings and the method's local rule."""
    nodes: Callable[[], Mapping[int, int]]
    """Says which nodes are connected at this moment: client -> node."""
    min_answers: int = 1
    """With fewer answers a round is repeated."""
    wanted_answers: int | None = None
    """With so many answers a round ends at once, where more clients are asked than it needs; None: as many as asked."""
    quorum: float = 1.0
    """Share of the wanted answers after which the round waits only as long again as these took."""
    patience_seconds: float = 60.0
    """How long a round waits after the quorum at least."""
    round_seconds: float = 600.0
    """How long a round waits for answers at most."""
    limits: Limits = field(default_factory=Limits)
    max_samples: Callable[[int], int] | None = None
    """Says how many samples a client may claim, where that differs between clients; 0: it was revoked."""
    log: Callable[[str], None] = print
    on_round_end: Callable[[int, Collection[int], Collection[int]], None] = lambda *_: None
    """Called after each round with its number, the clients that were late and those that answered."""

    def train_round(self, request: RoundRequest) -> RoundResult:
        """Send every client its task and sub-model; returns one sum for each cohort, of the answers that count."""
        state, tasks, round = request.state, request.tasks, request.round
        subs, arrays = self._cut(state, tasks)
        nodes = self.nodes()
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
        exchange = Exchange(self.grid)
        exchange.send(contents, "train", seconds=self.round_seconds, group=str(round))
        unsent = [task.client for node, task in by_node.items() if node not in exchange.waiting]
        absent |= dict.fromkeys(unsent, "it could not be sent its task: it has just been revoked or is gone")
        bound_replies(self.grid, max(map(self._max_bytes, subs.values())), seconds=self.round_seconds)
        wanted = min(self.wanted_answers or len(tasks), len(tasks))
        patience = Patience(wanted, self.quorum, min_seconds=self.patience_seconds, max_seconds=self.round_seconds)

        def goes_on() -> bool:
            longer = patience.goes_on(len(answered))
            if longer and (why := patience.why(len(answered))):
                waiting = ", ".join(_named(by_node[node], node) for node in sorted(exchange.waiting))
                self.log(f"round {round + 1}: {why} for {waiting}")
            return longer

        for node, reply in exchange.replies(goes_on):
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
            if len(answered) == wanted:
                break
        unanswered = {by_node[node].client for node in exchange.waiting}
        if len(answered) < wanted:
            late |= unanswered
        else:
            absent |= dict.fromkeys(unanswered, f"it was not waited for: {wanted} answers are enough")
        absent |= self._why_late(late, nodes, patience.seconds)
        for client, why in absent.items():
            self.log(f"round {round + 1}: client {client} (node {nodes.get(client, '-')}) is left out: {why}")
        self.on_round_end(round, late, answered)
        if len(answered) < (needed := max(1, self.min_answers)):
            raise TooFewAnswers(f"round {round + 1} has {len(answered)} answers, but needs at least {needed}")
        return sums.finish(absent, frozenset(refused))

    def close(self) -> None:
        """Nothing is to be closed: nodes stay up when a run ends."""

    def _why_late(self, late: Collection[int], nodes: Mapping[int, int], seconds: float) -> dict[int, str]:
        """Why each of these clients has not answered, as far as the server can tell."""
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
        """The sub-models of a round by the keys of their indices: as tensors, and as Flower sends them."""
        indexes = {task.index.key: task.index for task in tasks}
        plan = self.trainer.plan
        subs = {key: extract(state, plan, index) for key, index in indexes.items()}
        return subs, {key: task_arrays(sub, plan.tied) for key, sub in subs.items()}

    def _read(self, reply: Message, task: Task, sent: SubState, token: str, round: int) -> CheckedAnswer:
        """Check a reply to a task; `UpdateError` or `ClientError` where it cannot count."""
        if (error := error_of(reply)) is not None:
            raise UpdateError(error) if UNREAD in error else ClientError(error)
        if (size := size_of(reply.content)) > (max_bytes := self._max_bytes(sent)):
            raise UpdateError(f"its answer has {size:,} bytes, more than {max_bytes:,}")
        limits = self.limits
        if self.max_samples is not None:
            max_samples = self.max_samples(task.client)
            if not max_samples:
                raise UpdateError("it is no longer enrolled")
            limits = replace(limits, samples=min(limits.samples, max_samples))
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

    def _max_bytes(self, sent: SubState) -> int:
        """How large an answer may be: the tensors as often as the method asks for them, and a little for each name."""
        local = self.trainer.rule.local
        each = sum(t.numel() * t.element_size() + 2048 for t in sent.values())
        return each * (1 + len(local.adds) + len(local.own)) + self.limits.overhead


def _named(task: Task, node: int) -> str:
    return f"client {task.client} (node {node})"


class _Sums:
    """Adds answers in the order of the tasks: an early answer is kept until those before it have come."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = list(tasks)
        self._early: dict[int, CheckedAnswer] = {}
        self._added = 0
        self._sums: dict[str, CohortSum] = {}
        self._facts: list[tuple[int, float]] = []
        self._kept: dict[int, Mapping[str, Mapping[str, Tensor]]] = {}

    def take(self, task: Task, answer: CheckedAnswer) -> None:
        """Add a client's answer, now or when those before it have come."""
        self._early[task.client] = answer
        while self._added < len(self.tasks) and self.tasks[self._added].client in self._early:
            self._add(self.tasks[self._added])
            self._added += 1

    def finish(self, absent: Mapping[int, str], refused: frozenset[int]) -> tuple[list[CohortSum], Report]:
        """The sums of all answers, and the report of the round."""
        for task in self.tasks[self._added :]:
            if task.client in self._early:
                self._add(task)
        passes, losses = zip(*self._facts, strict=True)
        return list(self._sums.values()), Report(passes, losses, absent, refused, kept=self._kept)

    def _add(self, task: Task) -> None:
        answer = self._early.pop(task.client)
        add_update(self._sums, task, answer.update, copy=False)
        if answer.kept:
            self._kept[task.client] = answer.kept
        self._facts.append((answer.passes, answer.loss))
