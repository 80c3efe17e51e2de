"""The engine that trains a round's tasks on Flower nodes, with the same sums as every other engine.

Answers are added in the order of the tasks, whatever order they arrive in. A client that is late, gone, failed or sends
what must not count is left out and named, and the round goes on with the others. Where fewer than `min_answers` remain,
nothing is aggregated and the server repeats the round (`TooFewAnswers`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.core.submodel import SubState, extract
from fedwidth.deployment.asking import Asking, Waiting
from fedwidth.deployment.records import CheckedAnswer, Limits, read_answer, task_arrays, task_record
from fedwidth.engines.serial import add_update
from fedwidth.errors import ClientError, OptionError, UpdateError
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

    def __post_init__(self) -> None:
        if self.trainer.settings.secure.enabled:
            raise OptionError("secure.enabled needs the engine of secure sums: here updates would not be hidden")

    def train_round(self, request: RoundRequest) -> RoundResult:
        """Send every client its task and sub-model; returns one sum for each cohort, of the answers that count."""
        tasks, round = {task.client: task for task in request.tasks}, request.round
        subs, arrays = cut_tasks(request.state, request.tasks, self.trainer)
        tokens = {client: secrets.token_hex(16) for client in tasks}
        contents = {
            client: task_record(
                task, arrays[task.index.key], token=tokens[client], round=round, sent=self.trainer.cut_sent(task)
            )
            for client, task in tasks.items()
        }
        sums = _Sums(request.tasks)

        def take(client: int, content: RecordDict) -> None:
            task = tasks[client]
            sums.take(task, self._read(content, task, subs[task.index.key], tokens[client], round))

        outcome = Asking(self.grid, self.nodes, self.log).ask(
            contents,
            "train",
            take,
            round=round,
            max_bytes=lambda client: self._max_bytes(subs[tasks[client].index.key]),
            waiting=Waiting(self.quorum, self.patience_seconds, self.round_seconds),
            wanted=self.wanted_answers,
        )
        self.on_round_end(round, outcome.late, outcome.answered)
        if len(outcome.answered) < (needed := max(1, self.min_answers)):
            raise TooFewAnswers(f"round {round + 1} has {len(outcome.answered)} answers, but needs at least {needed}")
        return sums.finish(outcome.absent, frozenset(outcome.refused))

    def close(self) -> None:
        """Nothing is to be closed: nodes stay up when a run ends."""

    def _read(self, content: RecordDict, task: Task, sent: SubState, token: str, round: int) -> CheckedAnswer:
        """Check an answer to a task; `UpdateError` where it cannot count."""
        limits = self.limits
        if self.max_samples is not None:
            max_samples = self.max_samples(task.client)
            if not max_samples:
                raise UpdateError("it is no longer enrolled")
            limits = replace(limits, samples=min(limits.samples, max_samples))
        return read_answer(
            content,
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


def cut_tasks(
    state: Mapping[str, Tensor], tasks: Sequence[Task], trainer: Trainer
) -> tuple[dict[str, SubState], dict[str, ArrayRecord]]:
    """The sub-models of a round by the keys of their indices: as tensors, and as Flower sends them."""
    indexes = {task.index.key: task.index for task in tasks}
    subs = {key: extract(state, trainer.plan, index) for key, index in indexes.items()}
    return subs, {key: task_arrays(sub, trainer.plan.tied) for key, sub in subs.items()}


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
