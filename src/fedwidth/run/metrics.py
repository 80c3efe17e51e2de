"""A line of the metrics: what a round of a run came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedwidth.adapters.measures import effective_rank
from fedwidth.devices.time import LATE
from fedwidth.methods import Task
from fedwidth.training.engine import Report
from fedwidth.training.schedule import learning_rate
from fedwidth.training.server.state import Server

if TYPE_CHECKING:
    from fedwidth.experiment import Experiment

Line = dict[str, Any]


def describe_round(
    experiment: Experiment,
    server: Server,
    tasks: Sequence[Task],
    report: Report,
    cohort: Sequence[tuple[int, float]] = (),
) -> Line:
    """The metrics of the round that just ended, but for what is measured after it.

    Where clients were absent, the whole cohort is written down too: sub-models may depend on the places in it.
    """
    settings, costs = experiment.settings, experiment.costs
    worked = [*zip(tasks, report.passes, strict=True), *report.unused]
    down, up = costs.traffic([task for task, _ in worked], report.answered, round=server.round - 1)
    answering = sum(
        costs.macs_of_answers(task, report.answered[task.client][0]) for task in tasks if task.client in report.answered
    )
    line: Line = {
        "round": server.round,
        "learning_rate": learning_rate(settings.training, server.round - 1, settings.rounds),
        "clients": [task.client for task in tasks],
        "capacities": [float(task.capacity) for task in tasks],
        "train_loss": sum(report.losses) / len(report.losses) if report.losses else None,
        "bytes_down": down,
        "bytes_up": up,
        "macs": sum(costs.macs(task, passes) for task, passes in worked) + answering,
    }
    if experiment.plan.adapters:
        rank = effective_rank(experiment.first_state, server.state, experiment.plan)
        line["adapters"] = {"error": report.error, "effective_rank": rank}
    if (opened := report.opened) is not None:
        line["bytes_down"], line["bytes_up"] = down + opened.down, up + opened.up
        line["secure"] = {
            "segments": opened.segments,
            "closed": opened.closed,
            "closed_weights": opened.closed_weights,
            "clipped": opened.clipped,
        }
    if experiment.budget is not None:
        line["privacy"] = {"epsilon": experiment.budget.epsilon(server.spent)}
        if (released := report.released) is not None:
            line["privacy"] |= {
                "clip": released.clip,
                "clipped": released.clipped,
                "signal_to_noise": released.signal_to_noise,
            }
    if report.untouched is not None:
        line["robust"] = {"kept_weights": report.untouched.share}
    if clipped := {str(client): float(f"{times:.3g}") for client, times in report.excess.items() if times > 1}:
        line["clipped"] = clipped
    if report.opposed:
        line["opposed"] = {str(client): float(f"{cosine:.3g}") for client, cosine in report.opposed.items()}
    if quarantined := server.quarantine.newly_out(server.round, settings.server.quarantine):
        line["quarantined"] = {str(client): last for client, last in quarantined.items()}
    absent = dict(report.absent)
    if absent or experiment.rounds.attends is not None:
        drawn = cohort or experiment.cohort(server.round - 1)
        absent |= costs.why_left_out([client for client, _ in drawn], [*line["clients"], *absent], server.round - 1)
    if absent:
        line["absent"] = {str(client): why for client, why in absent.items()}
        line["cohort"] = [[client, float(capacity)] for client, capacity in drawn]
    if costs.speeds is not None:
        slowest = max((costs.seconds(task) for task, _ in worked), default=0.0)
        line["device_seconds"] = settings.devices.deadline if LATE in absent.values() else slowest
    return line
