"""The table of `report --target`: what each run took to reach an accuracy."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from fedwidth.analysis.target import Reached, reach
from fedwidth.analysis.wording import show_mebibytes, show_time
from fedwidth.cli.tables import print_table
from fedwidth.errors import OptionError
from fedwidth.objectives.metric import measure_of
from fedwidth.report.entries import group_runs
from fedwidth.report.runs import read_runs


def parse_target(text: str) -> float:
    """An accuracy as a share or in percent, or a value of another metric.

    >>> parse_target("0.8"), parse_target("80%")
    (0.8, 0.8)
    """
    number, percent = text.strip().removesuffix("%").strip(), text.strip().endswith("%")
    try:
        target = float(number) / (100 if percent else 1)
    except ValueError:
        target = 0.0
    if not target > 0 or (percent and target > 1):
        raise OptionError(f"--target must be an accuracy such as 0.8 or 80%, or a value of the metric, not '{text}'")
    return target


def print_targets(folders: Sequence[Path], target: float) -> None:
    """A row for every entry of the report, with means over its seeds where all of them reached the accuracy.

    A mean over those alone that did would make a run look fast that mostly fails.
    """
    rows, partly = [], False
    entries = group_runs(read_runs(folders))
    measure = measure_of(line for entry in entries for run in entry.runs for line in run.metrics)
    if measure.percent and target > 1:
        raise OptionError(f"--target must be an {measure.title} such as 0.8 or 80%, not {target:g}")
    for entry in entries:
        found = [reached for run in entry.runs if (reached := reach(run.metrics, target)) is not None]
        counted = found if len(found) == len(entry.runs) else []
        partly |= bool(found) and not counted
        rows.append(
            [
                entry.label,
                f"{len(found)} of {len(entry.runs)}",
                _mean(counted, lambda reached: reached.round, lambda mean: f"{mean:.0f}"),
                _mean(counted, lambda reached: reached.sent, show_mebibytes),
                _mean(counted, lambda reached: reached.device_seconds, show_time),
            ]
        )
    heading = f"seeds that reach {measure.scaled(target):g}{measure.unit}"
    print_table(["run", heading, "rounds", "MiB down and up", "device time"], rows)
    if partly:
        print("Means are over seeds, and only told where all of them reach it.")


def _mean(found: Sequence[Reached], number: Callable[[Reached], float | None], show: Callable[[float], str]) -> str:
    known = [value for reached in found if (value := number(reached)) is not None]
    return show(statistics.fmean(known)) if known and len(known) == len(found) else "–"
