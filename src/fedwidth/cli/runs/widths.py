"""How good the models of each width are, in a table beside that of the runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedwidth.analysis.wording import over_seeds
from fedwidth.analysis.yardsticks import Gain
from fedwidth.cli.tables import print_table
from fedwidth.config.method_settings import method_of
from fedwidth.evaluation.widths import ALL, CHOSEN, SEVERAL, at_widths, key_of
from fedwidth.objectives.metric import Measure

if TYPE_CHECKING:
    from fedwidth.cli.runs.planned_run import PlannedRun

Mine = Sequence[tuple["PlannedRun", Mapping[str, Any]]]


def print_widths(by_label: Mapping[str, Mine], metric: Measure, gains: Sequence[Gain | None] = ()) -> None:
    """One row for every label and one column for every width that was measured, where any but the whole model was.

    Last columns have what the models of all widths answer together, and those that validation samples choose, where
    they were asked; and what is gained so over yardsticks, given for every label or for none.
    """
    tables = [[_at_own_widths(run, summary) for run, summary in mine] for mine in by_label.values()]
    found = {width for runs in tables for widths in runs for width in widths}
    if not found - {"1"}:
        return
    columns = sorted(found, key=float, reverse=True)
    summaries = [[summary for _, summary in mine] for mine in by_label.values()]
    asked = [name for name in SEVERAL if any(scores_of(each, name) for runs in summaries for each in runs)]
    gained = any(gains)
    rows = []
    for mine, runs, of_runs, gain in zip(
        by_label.values(), tables, summaries, gains or [None] * len(tables), strict=True
    ):
        own = Measure.of(mine[0][1])
        known = [[own.scaled(widths[width]) for widths in runs if width in widths] for width in columns]
        known += [[own.scaled(value) for each in of_runs for value in scores_of(each, name)] for name in asked]
        if any(known):  # yardsticks are measured as a whole alone
            cells = [over_seeds(values, metric=own) if values else "–" for values in known]
            rows.append([mine[0][0].title, *cells, *([str(gain.difference) if gain else "–"] if gained else [])])
    shown = [mine[0][0] for mine in by_label.values()]
    untested = [run.title for run in shown if not run.settings.evaluation.test]
    of = "validation " * (len(untested) == len(shown))
    headings = ["run", *columns, *asked, *(["gain"] if gained else [])]
    print_table(headings, rows, title=f"{of}{metric.title} at each width{metric.unit}")
    if gained and len(asked) > 1:
        print(f"The gain is of what is {CHOSEN} where something is, else of all widths {ALL}.")
    if untested and not of:
        print(f"{', '.join(untested)}: on validation samples, as the test set was not looked at.")
    for mine in by_label.values():
        seeds: dict[str, list[str]] = {}
        for run, summary in mine:
            if chosen := summary.get("chosen_capacities"):
                seeds.setdefault(" + ".join(f"{width:g}" for width in chosen), []).append(f"{run.settings.seed}")
        if seeds:
            each = [f"{widths} (seed {', '.join(some)})" for widths, some in seeds.items()]
            print(f"{mine[0][0].title}: validation samples choose {' and '.join(each if len(seeds) > 1 else seeds)}.")
    if len({run.settings.model.width for run, runs in zip(shown, tables, strict=True) if any(runs)}) > 1:
        print(
            "Widths are shares of the server's model, which is not of the same width in all runs."
            " `fedwidth export --capacity` reads them so, too."
        )
    if keeping := [run.title for run in shown if "own" in method_of(run.settings).reads]:
        print(f"{', '.join(keeping)}: at each width the model of the first client of that size, which stays with it.")


def scores_of(summary: Mapping[str, Any], which: str) -> list[float]:
    """What models of several widths score together, in a list; an empty one where they were not asked."""
    found = summary.get(key_of(which, Measure.of(summary).name))
    return [] if found is None else [found]


def _at_own_widths(run: PlannedRun, summary: Mapping[str, Any]) -> dict[str, float]:
    """What a run measured at the widths it has models of: where all devices hold the whole model, of that alone."""
    found = at_widths(summary, Measure.of(summary).name)
    return {width: found[width] for width in found if float(width) == 1 or not method_of(run.settings).holds_all}


def mean_at_widths(summaries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean over seeds of what was measured at each width, widest first."""
    found = [at_widths(summary, Measure.of(summary).name) for summary in summaries]
    widths = sorted({width for one in found for width in one}, key=float, reverse=True)
    return {width: statistics.fmean([one[width] for one in found if width in one]) for width in widths}
