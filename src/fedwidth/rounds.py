"""One round, on one screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from fedwidth.aggregation import CohortSum
from fedwidth.methods import History, Method, Task
from fedwidth.plan.plan import Plan
from fedwidth.server import Server
from fedwidth.settings import ServerSettings


@dataclass(frozen=True)
class Report:
    """What the clients of a round reported: one entry per task whose client answered, in task order."""

    passes: tuple[int, ...]
    """Training samples seen, each as often as it was seen."""
    losses: tuple[float, ...]
    absent: Mapping[int, str] = field(default_factory=dict)
    """Clients whose work does not count, and why: late, gone or refused. Only real devices can be."""


class Engine(Protocol):
    """Trains the clients of a round. Whatever the engine, the same tasks give the same sums."""

    def run(self, state: Mapping[str, Tensor], tasks: Sequence[Task], round: int) -> tuple[list[CohortSum], Report]:
        """Train every task from `state`: one sum per index, in order of first appearance, and what was reported."""

    def close(self) -> None:
        """Give back workers and memory."""


def run_round(
    server: Server,
    cohort: Sequence[tuple[int, float]],
    method: Method,
    *,
    plan: Plan,
    engine: Engine,
    settings: ServerSettings,
    seed: int,
    tasks: list[Task] | None = None,
) -> tuple[Server, list[Task], Report]:
    """Choose sub-models for the cohort of (client, capacity), train them, and take the server one round further.

    `tasks` are what would be chosen, where that was done beforehand.
    """
    tasks = tasks or method.assign(plan, cohort, server.round, server.history, seed)
    if not tasks:  # all were excluded: nothing is learnt in this round
        return replace(server, round=server.round + 1), [], Report((), ())
    sums, report = engine.run(server.state, tasks, server.round)
    tasks = [task for task in tasks if task.client not in report.absent]
    aggregate = method.aggregate(server.state, sums, plan)
    history = History.of(plan, [task.index for task in tasks]) if method.remembers else None
    return server.advance(aggregate, history, settings, plan.parameters), tasks, report
