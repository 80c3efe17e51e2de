"""The plain loop: one client after the other. The reference that every other engine is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.core.updates import Update
from fedwidth.engines.faults import error_context
from fedwidth.methods import Task
from fedwidth.training.client import Trained, Trainer
from fedwidth.training.engine import Engine, Report, RoundRequest, RoundResult


class SerialEngine(Engine):
    """Trains the tasks of a round in this process, one after the other."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def train_round(self, request: RoundRequest) -> RoundResult:
        """Cut each sub-model once, train its clients one by one, and add each update as it arrives."""
        state, tasks, round = request.state, request.tasks, request.round
        subs: dict[str, dict[str, Tensor]] = {}
        sums: dict[str, CohortSum] = {}
        waiting = Counter(task.part.key for task in tasks)
        reports = []
        for task in tasks:
            key = task.part.key
            if key not in subs:
                with error_context("cut", round, task):
                    subs[key] = task.part.cut(state, self.trainer.plan)
            trained = train_task(self.trainer, subs[key], task, round)
            with error_context("add", round, task):
                add_update(sums, task, trained.update)
            waiting[key] -= 1
            if not waiting[key]:  # where every client has its own index, a round would hold them all
                del subs[key]
            reports.append(trained)
        return list(sums.values()), _report_of(tasks, reports)

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""


def train_task(
    trainer: Trainer,
    sub: dict[str, Tensor],
    task: Task,
    round: int,
    sent: Mapping[str, Mapping[str, Tensor] | float] | None = None,
) -> Trained:
    """Train one task; an exception says which round, client and width it came from."""
    with error_context("train", round, task):
        return trainer.train(sub, task, round, sent)


def add_update(sums: dict[str, CohortSum], task: Task, update: Update, *, copy: bool = True) -> None:
    """Add a client's update to the sum of its cohort, which begins with its first client."""
    if task.cohort not in sums:
        sums[task.cohort] = task.part.accumulator()
    sums[task.cohort].add(update, copy=copy)


def _report_of(tasks: Sequence[Task], trained: Sequence[Trained]) -> Report:
    """What the clients reported, in task order."""
    kept = {task.client: t.kept for task, t in zip(tasks, trained, strict=True) if t.kept}
    return Report(tuple(t.passes for t in trained), tuple(t.loss for t in trained), kept=kept)
