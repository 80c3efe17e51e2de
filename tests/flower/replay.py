"""A deployment's run once more, on the embedded engine and with the same absentees."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedwidth.config.read import read_settings
from fedwidth.engines.serial import SerialEngine
from fedwidth.experiment import Experiment

if TYPE_CHECKING:
    from fedwidth.deployment.run_config import RunConfig


class WithAbsentees(SerialEngine):
    """The serial engine, for some of whose clients nobody waits: (round, client)."""

    def __init__(self, trainer, absent: set[tuple[int, int]]) -> None:
        super().__init__(trainer)
        self.absent = absent

    def run(self, state, tasks, round, **_more):
        there = [task for task in tasks if (round, task.client) not in self.absent]
        sums, report = super().run(state, there, round)
        gone = {task.client: "absent" for task in tasks if (round, task.client) in self.absent}
        return sums, replace(report, absent=gone)


def replayed(text: str, lines: list[dict], deployment: RunConfig | None = None) -> dict:
    """The state that the embedded engine has after these rounds, with the cohorts and absentees that the metrics name.

    Equal states mean that no answer was lost, counted twice or taken from another round.
    """
    from fedwidth.deployment.run_config import RunConfig  # behind an extra

    experiment = Experiment((deployment or RunConfig()).with_defaults(read_settings(text).main))
    absent = {
        (round, int(client))
        for round, line in enumerate(lines)
        for client in line.get("absent", {})
        if client not in line.get("opposed", {})  # those answered, and are left out again by the same comparison
    }

    def cohort(round: int) -> list[tuple[int, float]]:
        line = lines[round]
        assert len(set(line["clients"])) == len(line["clients"])
        own = zip(line["clients"], line["capacities"], strict=True)
        return [(client, capacity) for client, capacity in line.get("cohort", own)]

    engine = WithAbsentees(experiment.trainer, absent)
    result = experiment.run(engine=engine, cohort=cohort)
    assert [line["clients"] for line in result.metrics] == [line["clients"] for line in lines]
    return dict(result.server.state)
