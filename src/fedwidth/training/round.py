"""One round on one screen: sub-models are chosen, trained and averaged, and the server is a round further."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedwidth.core.answers import AnswerSum
from fedwidth.methods import Task
from fedwidth.training.engine import Coming, Engine, Report, Watch
from fedwidth.training.rounds import Rounds
from fedwidth.training.server.norms import in_order, train_by_capacity
from fedwidth.training.server.state import Server


def run_round(
    rounds: Rounds,
    server: Server,
    cohort: Sequence[tuple[int, float]],
    engine: Engine,
    *,
    tasks: Sequence[Task] | None = None,
    coming: Coming | None = None,
    watch: Watch | None = None,
) -> tuple[Server, list[Task], Report]:
    """Choose sub-models for the cohort of (client, capacity), train them, and take the server one round further.

    `tasks` are what would be chosen, where that was done beforehand.
    """
    drawn = tasks or rounds.assign(server, cohort)
    tasks = rounds.send(server, rounds.attending(drawn, server.round))
    out = {task.client: server.quarantine.why_out(task.client, server.round) for task in tasks}
    left_out = {client: why for client, why in out.items() if why}
    tasks = [task for task in tasks if task.client not in left_out]
    if not tasks and not rounds.noised:  # all were excluded or absent: nothing is learnt in this round
        return server.skip(), [], Report((), (), left_out)
    if not tasks:  # a private round must not tell that nobody came
        return rounds.end(server, [], [], Report((), (), left_out))
    if server.norms:
        tasks = in_order(tasks)
        sums, report = train_by_capacity(engine, server, tasks, watch)
    else:
        sums, report = engine.run(server.state, tasks, server.round, coming=coming, watch=watch)
    if left_out:
        report = replace(report, absent={**left_out, **report.absent})
    tasks = [task for task in tasks if task.client not in report.absent]
    report = replace(report, answered=_answered(tasks, sums))
    tasks, sums, report = rounds.compare(server, tasks, sums, report)
    sums, report = rounds.hide(server, drawn, tasks, sums, report)
    if report.opened and not sums:  # too few were left in every segment
        return server.skip(), tasks, report
    return rounds.end(server, tasks, sums, report)


def _answered(tasks: Sequence[Task], sums: Sequence[Any]) -> dict[int, tuple[int, int]]:
    """By client, where models stay with clients: for how many samples it answered, and in how many bytes."""
    if not any(isinstance(one, AnswerSum) for one in sums):
        return {}
    return {task.client: (one.rows, one.bytes) for task, one in zip(tasks, sums, strict=True)}
