"""The plain loop: one client after the other. The reference every other engine is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from torch import Tensor

from fedwidth.aggregation import CohortSum
from fedwidth.client import Trained, Trainer
from fedwidth.engines.faults import named
from fedwidth.methods import Task
from fedwidth.rounds import Report
from fedwidth.submodel import extract


class SerialEngine:
    """Trains in this process, in task order."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def run(self, state: Mapping[str, Tensor], tasks: Sequence[Task], round: int) -> tuple[list[CohortSum], Report]:
        """Extract each index once, train its clients one by one, add each update as it arrives."""
        subs: dict[str, dict[str, Tensor]] = {}
        sums: dict[str, CohortSum] = {}
        waiting = Counter(task.index.key for task in tasks)
        reports = []
        for task in tasks:
            key = task.index.key
            if key not in subs:
                with named("cut", round, task):
                    subs[key] = extract(state, self.trainer.plan, task.index)
            trained = train_named(self.trainer, subs[key], task, round)
            with named("add", round, task):
                sums.setdefault(key, CohortSum(task.index)).add(trained.update)
            waiting[key] -= 1
            if not waiting[key]:  # where every client has its own index, a round would hold them all
                del subs[key]
            reports.append(trained)
        return list(sums.values()), report_of(reports)

    def close(self) -> None:
        """Nothing to give back."""


def train_named(trainer: Trainer, sub: dict[str, Tensor], task: Task, round: int) -> Trained:
    """Train one task; an exception says which round, client and width it came from."""
    with named("train", round, task):
        return trainer.train(sub, task, round)


def report_of(trained: Sequence[Trained]) -> Report:
    """What the clients reported, in task order."""
    return Report(tuple(t.passes for t in trained), tuple(t.loss for t in trained))
