"""What several runs came to: the table on the screen, and the same numbers in summary.json for scripts."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fedwidth
from fedwidth.analysis.comparison import Comparison, Row
from fedwidth.analysis.difference import Difference
from fedwidth.analysis.wording import over_seeds, show_mebibytes, show_time
from fedwidth.analysis.yardsticks import is_yardstick
from fedwidth.cli.runs.widths import mean_at_widths, print_widths, scores_of
from fedwidth.cli.tables import print_table
from fedwidth.config.method_settings import method_of
from fedwidth.devices.capacity import Capacities, describe_mix
from fedwidth.evaluation.samples import TEST, VALIDATION
from fedwidth.evaluation.widths import SEVERAL, key_of
from fedwidth.objectives.metric import Measure
from fedwidth.run.checkpoint import write_whole
from fedwidth.settings import Settings

if TYPE_CHECKING:
    from fedwidth.cli.runs.planned_run import PlannedRun

Summary = Mapping[str, Any]
TUNED = "docs/benchmark/server-width.md"
"""The page that shows what tuned yardsticks reach."""


def compare_runs(runs: Sequence[PlannedRun], summaries: Sequence[Summary], *, chosen: bool) -> Comparison:
    """The runs compared by label: the first one with the others, or with `chosen` the best one."""

    metric = Measure.of(summaries[0])

    def by_seed(mine: Sequence[tuple[PlannedRun, Summary]], key: str) -> dict[int, float]:
        found = {run.settings.seed: summary.get(key) for run, summary in mine}
        return {seed: metric.scaled(value) for seed, value in found.items() if value is not None}

    rows = [
        Row.of(mine[0][0].title, mine[0][0].settings, partial(by_seed, mine), metric.name)
        for mine in by_label(runs, summaries).values()
    ]
    return Comparison(tuple(rows), chosen, metric)


def print_results(
    runs: Sequence[PlannedRun], summaries: Sequence[Summary], compared: Comparison, *, title: str = ""
) -> None:
    """One row for every label, with the spread over its seeds, and what the differences come to."""
    measures = {Measure.of(summary) for summary in summaries}
    metric = measures.pop() if len(measures) == 1 else Measure("score", "score")
    shown = [f"test {metric.title}{metric.unit}", f"best{metric.unit}", f"clients' own data{metric.unit}"]
    validated = any(_validation(summary) in summary for summary in summaries)
    if validated:
        shown = [f"validation{metric.unit}", *shown]
    timed = any("device_seconds" in summary for summary in summaries)
    rows = []
    gained = any(compared.gains)
    for gain, mine in zip(compared.gains, by_label(runs, summaries).values(), strict=True):
        settings = mine[0][0].settings
        rows.append(
            [
                mine[0][0].title,
                _devices(settings, mine[0][1].get("left_out", {})),
                *_cells([summary for _, summary in mine], validated=validated),
                show_mebibytes(statistics.mean(summary["bytes_up"] for _, summary in mine)),
                *([_device_time(mine)] if timed else []),
                f"{sum(summary['seconds'] for _, summary in mine):.0f}",
                *([str(gain.difference) if gain else "–"] if gained else []),
            ]
        )
    columns = ["run", "devices", *shown, "MiB sent up", *(["device time"] if timed else []), "seconds"]
    print_table([*columns, *(["gain"] if gained else [])], rows, title=title or None)
    print_widths(by_label(runs, summaries), metric, compared.gains_together)
    seeds = sorted({run.settings.seed for run in runs})
    means = "MiB and device time are means" if timed else "MiB are a mean"
    over = f" ± is the standard deviation over seeds; {means} over them, seconds their sum." if len(seeds) > 1 else ""
    print(f"Seeds: {', '.join(map(str, seeds))}.{over}")
    sentences = compared.sentences()
    for sentence in sentences:
        print(sentence)
    if sentences and any(scores_of(summary, name) for summary in summaries for name in SEVERAL):
        which = "All else" if compared.together_sentences() else "All of this"
        print(f"{which} compares whole models; what their widths reach, alone or together, is in the table of widths.")
    if gained:
        brackets = " (95 % interval)" if len(seeds) > 1 else "; one seed: no interval"
        less = "less that" if metric.higher_is_better else "below that"
        print(f"Gain: {metric.title} {less} of the best yardstick but full for all, seed by seed{brackets}.")
        print(f"Yardsticks train with the settings of the runs they serve; tuned ones may reach more: {TUNED}.")
        if added := [
            summary["seconds"] for run, summary in zip(runs, summaries, strict=True) if is_yardstick(run.title)
        ]:
            print(f"The yardsticks that were added took {sum(added):.0f} s.")


def write_results(folder: Path, runs: Sequence[PlannedRun], summaries: Sequence[Summary], compared: Comparison) -> None:
    """summary.json of the folder that holds the runs: a list of them, mean and deviation of each label, comparisons.

    Labels are those of the recipe, by which runs are found again; titles are what the table shows.
    Where the folder is the main run's own, its summary keeps all it says and is added to.
    """
    listed = [
        {
            "label": run.label,
            "title": run.title,
            "folder": str(run.folder.relative_to(folder)),
            **{key: summary[key] for key in ("method", "seed", "rounds", *_scores(summary))},
        }
        for run, summary in zip(runs, summaries, strict=True)
    ]
    table = [_spread(label, mine) for label, mine in by_label(runs, summaries).items()]
    for row, gain, own, together in zip(table, compared.gains, compared.rows, compared.gains_together, strict=True):
        if gain:
            row["gain"] = {"over": gain.kind, **describe(gain.difference)}
        if together:
            row["gain_together"] = {"of": own.which, "over": together.kind, **describe(together.difference)}
    labels = [row["label"] for row in table]
    comparisons = [
        {"first": labels[compared.lead], "second": labels[number], **describe(difference)}
        for number, difference in compared.differences.items()
    ]
    if runs[0].folder == folder:
        whole: dict[str, Any] = dict(summaries[0])
    else:
        whole = {"seconds": round(sum(s["seconds"] for s in summaries), 3), "version": fedwidth.__version__}
        if len(table) == 1:  # one run with several seeds: what a plain run says, as means
            means = {key: table[0][key] for key in _scores(summaries[0])}
            whole |= {"method": summaries[0]["method"], "rounds": summaries[0]["rounds"], **means}
            whole["seed"] = table[0]["seeds"]
    facts: dict[str, Any] = {"runs": listed, "table": table, "comparisons": comparisons}
    if compared.best_leads:
        facts["best"] = {"label": labels[compared.lead], "by": compared.chosen_by}
    write_whole(folder / "summary.json", json.dumps({**whole, **facts}, indent=2) + "\n")


def describe(difference: Difference) -> dict[str, Any]:
    """A difference in points: its mean, 95 % interval, values by seed, p-value (Holm) and verdict."""
    return {
        "mean": difference.mean,
        "interval": difference.interval,
        "values": difference.values,
        "p": difference.p_value,
        "verdict": difference.verdict,
    }


def by_label(runs: Sequence[PlannedRun], summaries: Sequence[Summary]) -> dict[str, list[tuple[PlannedRun, Summary]]]:
    """Runs and summaries by label, in order of first appearance."""
    found: dict[str, list[tuple[PlannedRun, Summary]]] = {}
    for run, summary in zip(runs, summaries, strict=True):
        found.setdefault(run.label, []).append((run, summary))
    return found


def _device_time(mine: Sequence[tuple[PlannedRun, Summary]]) -> str:
    """What a run would have taken its devices, on average over seeds."""
    known = [summary["device_seconds"] for _, summary in mine if "device_seconds" in summary]
    return show_time(statistics.mean(known)) if known else "–"


def _scores(summary: Summary) -> tuple[str, ...]:
    """The names of what a summary gives of its metric: on the test set, the best there, on clients' own data, and on
    validation samples where there are some.
    """
    name, validation = Measure.of(summary).name, _validation(summary)
    found = (TEST.key(name), f"best_{TEST.key(name)}", f"local_{name}")
    return (*found, validation) if validation in summary else found


def _validation(summary: Summary) -> str:
    return VALIDATION.key(Measure.of(summary).name)


def _spread(label: str, mine: Sequence[tuple[PlannedRun, Summary]]) -> dict[str, Any]:
    row: dict[str, Any] = {"label": label, "title": mine[0][0].title, "seeds": [run.settings.seed for run, _ in mine]}
    for key in _scores(mine[0][1]):
        known = [summary[key] for _, summary in mine if summary[key] is not None]
        row[key] = statistics.mean(known) if known else None
        row[f"{key}_std"] = statistics.stdev(known) if len(known) > 1 else None
    metric = Measure.of(mine[0][1]).name
    if mean := mean_at_widths([summary for _, summary in mine]):
        row[f"capacity_{metric}"] = mean
    for name in SEVERAL:
        if known := [value for _, summary in mine for value in scores_of(summary, name)]:
            row[key_of(name, metric)] = statistics.mean(known)
    return row


def _devices(settings: Settings, left_out: Iterable[str]) -> str:
    """Which devices take part and what they train of the model at full width, in a few letters; the method may have
    left some out."""
    devices, method = settings.devices, method_of(settings)
    ranks = settings.adapter.rank or method.adapters  # of which capacities are then shares, whatever the width is
    width = 1.0 if ranks else settings.model.width
    mix = describe_mix(devices.capacities, width)
    if without := [*devices.excluded, *map(float, left_out)]:
        enrolled = Capacities.parse(devices.capacities).enrolled(without)
        return f"{', '.join(f'{value * width:g}' for value in enrolled)} of {mix}"
    return f"all {settings.model.width:g}" if method.holds_all else mix


def _cells(mine: Sequence[Summary], *, validated: bool) -> list[str]:
    """What seeds of one experiment measured, as the table has it."""
    metric = Measure.of(mine[0])
    test, best, local, *_ = _scores(mine[0])
    keys = [_validation(mine[0]), test, best, local] if validated else [test, best, local]
    found = [[metric.scaled(value) for each in mine if (value := each.get(key)) is not None] for key in keys]
    return [over_seeds(values, metric=metric) if values else "–" for values in found]
