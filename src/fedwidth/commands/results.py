"""What several runs came to: the table on the screen, and the same numbers in summary.json for scripts."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fedwidth
from fedwidth.capacity import describe_mix
from fedwidth.checkpoint import write_whole
from fedwidth.commands.tables import print_table
from fedwidth.reproduce_time import show_time
from fedwidth.settings import Settings

if TYPE_CHECKING:
    from fedwidth.commands.jobs import Job

ACCURACIES = ("global_accuracy", "best_global_accuracy", "local_accuracy")
VALIDATION = "validation_accuracy"

Summary = Mapping[str, Any]


def print_results(jobs: Sequence[Job], summaries: Sequence[Summary]) -> None:
    """One row for every label, with the spread over its seeds."""
    keys, columns = list(ACCURACIES), ["test accuracy %", "best %", "clients' own data %"]
    if any(VALIDATION in summary for summary in summaries):
        keys, columns = [VALIDATION, *keys], ["validation %", *columns]
    timed = any("device_seconds" in summary for summary in summaries)
    rows = []
    for mine in by_label(jobs, summaries).values():
        settings = mine[0][0].settings
        rows.append(
            [
                mine[0][0].title,
                _devices(settings),
                *(_shown([summary.get(key) for _, summary in mine]) for key in keys),
                f"{statistics.mean(summary['bytes_up'] for _, summary in mine) / 2**20:.1f}",
                *([_device_time(mine)] if timed else []),
                f"{sum(summary['seconds'] for _, summary in mine):.0f}",
            ]
        )
    print_table(["run", "devices", *columns, "MB sent up", *(["device time"] if timed else []), "seconds"], rows)
    seeds = sorted({job.settings.seed for job in jobs})
    print(
        f"Seeds: {', '.join(map(str, seeds))}." + (" ± is the standard deviation over seeds." if len(seeds) > 1 else "")
    )


def write_results(folder: Path, jobs: Sequence[Job], summaries: Sequence[Summary]) -> None:
    """summary.json of the folder that holds the runs: a list of them, and mean and deviation of each label.

    Where the folder is the main run's own, its summary keeps all it says and is added to.
    """
    runs = [
        {
            "label": job.label,
            "folder": str(job.folder.relative_to(folder)),
            **{key: summary[key] for key in ("method", "seed", "rounds", *_accuracies(summary))},
        }
        for job, summary in zip(jobs, summaries, strict=True)
    ]
    table = [_spread(label, mine) for label, mine in by_label(jobs, summaries).items()]
    if jobs[0].folder == folder:
        whole: dict[str, Any] = dict(summaries[0])
    else:
        whole = {"seconds": round(sum(s["seconds"] for s in summaries), 3), "version": fedwidth.__version__}
        if len(table) == 1:  # one run with several seeds: what a plain run says, as means
            means = {key: table[0][key] for key in _accuracies(summaries[0])}
            whole |= {"method": summaries[0]["method"], "rounds": summaries[0]["rounds"], **means}
            whole["seed"] = table[0]["seeds"]
    write_whole(folder / "summary.json", json.dumps({**whole, "runs": runs, "table": table}, indent=2) + "\n")


def by_label(jobs: Sequence[Job], summaries: Sequence[Summary]) -> dict[str, list[tuple[Job, Summary]]]:
    """Jobs and summaries by label, in order of first appearance."""
    found: dict[str, list[tuple[Job, Summary]]] = {}
    for job, summary in zip(jobs, summaries, strict=True):
        found.setdefault(job.label, []).append((job, summary))
    return found


def _device_time(mine: Sequence[tuple[Job, Summary]]) -> str:
    """What a run would have taken its devices, on average over seeds."""
    known = [summary["device_seconds"] for _, summary in mine if "device_seconds" in summary]
    return show_time(statistics.mean(known)) if known else "–"


def _devices(settings: Settings) -> str:
    """What the devices of a run can afford."""
    if settings.method.name == "fedavg":
        return f"all {settings.model.width:g}"
    return describe_mix(settings.devices.capacities)


def _accuracies(summary: Summary) -> tuple[str, ...]:
    """The accuracies a summary gives."""
    return (*ACCURACIES, VALIDATION) if VALIDATION in summary else ACCURACIES


def _spread(label: str, mine: Sequence[tuple[Job, Summary]]) -> dict[str, Any]:
    row: dict[str, Any] = {"label": label, "seeds": [job.settings.seed for job, _ in mine]}
    for key in _accuracies(mine[0][1]):
        known = [summary[key] for _, summary in mine if summary[key] is not None]
        row[key] = statistics.mean(known) if known else None
        row[f"{key}_std"] = statistics.stdev(known) if len(known) > 1 else None
    return row


def _shown(values: Sequence[float | None]) -> str:
    known = [100 * v for v in values if v is not None]
    if not known:
        return "–"
    mean = statistics.mean(known)
    return f"{mean:.2f} ± {statistics.stdev(known):.2f}" if len(known) > 1 else f"{mean:.2f}"
