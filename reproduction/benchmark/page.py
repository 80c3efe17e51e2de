"""Pages about the benchmark: texts are written by hand, what stands between two marks is made from recorded runs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fedwidth.config.read import read_settings
from fedwidth.methods import method, methods
from fedwidth.reproduce.records import Record
from reproduction.benchmark.standings import (
    ANY_WIDTH,
    CAPS,
    MIXES,
    NARROWER,
    NARROWER_TITLES,
    ONLY_HALF,
    ONLY_QUARTER,
    YARDSTICKS,
    Accuracy,
    Bars,
    Standings,
    best_part,
    chosen_accuracy,
    late_accuracy,
    part_accuracy,
    together_accuracy,
)
from reproduction.benchmark.tables import (
    accuracy_table,
    device_table,
    gain_table,
    mix_table,
    server_width_table,
    worst_share,
    yardstick_table,
)
from reproduction.benchmark.tuning import ONE_WIDTH, find_trials, tuning_table, width_table
from reproduction.markdown import folded

MARK = re.compile(r"(<!-- made by `make results`: (?P<kind>\w+) of (?P<set>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
NOTHING = "Nothing has been run yet."
PARTS = ("1", "0.5", "0.25", "0.125", "0.0625")
"""The sub-models of a run that may have been measured, as shares of the server's model."""
SETS = ("cifar10", "cifar100")
PAGES = (
    "benchmark.md",
    "benchmark/parts.md",
    "benchmark/mixes.md",
    "benchmark/server-width.md",
    "benchmark/protocol.md",
    "choosing-a-method.md",
)
"""The pages in docs/ that have such marks."""
YARDSTICK_TITLES = {
    ONE_WIDTH: "only devices that can hold it",
    "exclude": "*exclude*",
    "smallest": "*smallest for all*",
    "quarter": "*smallest for all*",
    "full": "*full for all*",
    ONLY_HALF: "a model of 1/2, only devices that can hold it",
    ONLY_QUARTER: "a model of 1/4, only devices that can hold it",
}


def write_benchmark(page: str, records: Sequence[Record]) -> str:
    """The page with all that is between marks made anew."""
    titles = method_titles()
    of_parts = partial(gains_text, mixes=MIXES | CAPS, with_ranks=False)
    made: dict[str, Callable[[str, Sequence[Record], dict[str, str]], str]] = {
        "tuning": tuning_text,
        "widths": widths_text,
        "yardsticks": yardsticks_text,
        "accuracies": accuracies_text,
        "gains": gains_text,
        "capped": partial(gains_text, mixes=CAPS),
        "part": partial(of_parts, accuracy=part_accuracy),
        "chosen": partial(of_parts, accuracy=chosen_accuracy),
        "together": partial(of_parts, accuracy=together_accuracy),
        "any_width": any_width_text,
        "any_width_chosen": partial(any_width_text, accuracy=chosen_accuracy),
        "narrower": narrower_text,
        "narrower_chosen": partial(narrower_text, accuracy=chosen_accuracy),
        "server_widths": server_widths_text,
        "details": details_text,
    }

    def fill(found: re.Match[str]) -> str:
        text = made[found["kind"]](found["set"], records, titles)
        return f"{found[1]}\n{text}\n\n{found[4]}"

    return MARK.sub(fill, page)


def method_titles() -> dict[str, str]:
    """What rows are called: methods, those of one's own that stand in the recipes, and yardsticks."""
    rows = {
        run.label.partition("/")[0]: run.settings.method.name
        for name in SETS
        for recipe in (f"benchmark/{name}", f"benchmark/{name}-tuning")
        for run in read_settings(recipe).runs
    }
    own = {row: method(name).title for row, name in rows.items() if ":" in name}
    return {name: each.title for name, each in methods().items()} | own | YARDSTICK_TITLES


def tuning_text(name: str, records: Sequence[Record], titles: dict[str, str]) -> str:
    """The trials of a data set, in which there are smallest models of two sizes."""
    return tuning_table(find_trials(f"benchmark/{name}-tuning", records), with_sizes(titles))


def widths_text(name: str, records: Sequence[Record], titles: dict[str, str]) -> str:
    """Trials with server models of other widths."""
    trials, tuned = (find_trials(f"benchmark/{name}-{kind}", records) for kind in ("server-width", "tuning"))
    return width_table(trials, tuned, titles)


def yardsticks_text(name: str, records: Sequence[Record], titles: dict[str, str]) -> str:
    """What the yardsticks reached that mixes share."""
    standings = Standings.of(name, records)
    return yardstick_table(standings, with_sizes(titles)) if standings.runs else NOTHING


def with_sizes(titles: dict[str, str]) -> dict[str, str]:
    """The titles, those of the two smallest models told apart."""
    smallest = titles["smallest"]
    return titles | {"smallest": f"{smallest}, 1/16", "quarter": f"{smallest}, 1/4"}


def accuracies_text(name: str, records: Sequence[Record], titles: dict[str, str]) -> str:
    """What every method and yardstick reached in every mix."""
    standings = Standings.of(name, records)
    return accuracy_table(standings, titles) if any(map(standings.methods, MIXES)) else NOTHING


def gains_text(
    name: str,
    records: Sequence[Record],
    titles: dict[str, str],
    *,
    mixes: Mapping[str, str] = MIXES,
    accuracy: Accuracy = late_accuracy,
    bars: Bars = YARDSTICKS,
    with_ranks: bool = True,
) -> str:
    """What every method gained in these mixes over these yardsticks, by what counts as the accuracy of a run."""
    standings = Standings.of(name, records, accuracy, bars)
    begun = any(map(standings.methods, mixes))
    return gain_table(standings, titles, mixes, with_ranks=with_ranks) if begun else NOTHING


def any_width_text(
    name: str, records: Sequence[Record], titles: dict[str, str], *, accuracy: Accuracy = late_accuracy
) -> str:
    """What every method gained over one model of any width, in the mixes in which other widths were run."""
    runs = Standings.of(name, records).runs
    mixes = {
        mix: MIXES[mix]
        for mix in NARROWER
        if {ANY_WIDTH[mix][kind] for kind in (ONLY_HALF, ONLY_QUARTER)} & runs.keys()
    }
    return gains_text(name, records, titles, mixes=mixes, accuracy=accuracy, bars=ANY_WIDTH, with_ranks=False)


def narrower_text(
    name: str, records: Sequence[Record], titles: dict[str, str], *, accuracy: Accuracy = late_accuracy
) -> str:
    """What methods with a server's model of 1/2 or 1/4 gained over one model of any width."""
    return gains_text(name, records, titles, mixes=NARROWER_TITLES, accuracy=accuracy, bars=ANY_WIDTH, with_ranks=False)


def server_widths_text(name: str, records: Sequence[Record], titles: dict[str, str]) -> str:
    """What was reached by the width of the server's model, with a method and without one."""
    standings = Standings.of(name, records)
    return server_width_table(standings, titles) if standings.runs else NOTHING


def details_text(name: str, records: Sequence[Record], titles: dict[str, str]) -> str:
    """Mix by mix: accuracies, the worst served clients, what it cost, and the sub-models of devices, folded away."""
    standings = Standings.of(name, records)
    parts = []
    for mix, title in (MIXES | CAPS).items():
        if standings.methods(mix):
            tables = [mix_table(standings, mix, titles), device_table(standings, mix, titles)]
            parts.append(folded(title[0].upper() + title[1:], "\n\n".join(filter(None, tables))))
    return "\n\n".join(parts) or NOTHING


def per_seed(name: str, records: Sequence[Record]) -> str:
    """Every reported run of a data set as a line of CSV; `part_0.5` is the sub-model of half of the server's model."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    answers = ["last_round", *(f"part_{size}" for size in PARTS), "best_part", "together", "chosen", "chosen_widths"]
    writer.writerow(["run", "seed", "accuracy", "worst_tenth", "bytes", "multiply_adds", "commit", *answers])
    for label, runs in sorted(Standings.of(name, records).runs.items()):
        writer.writerows(_line(label, record) for record in runs.values())
    return out.getvalue()


def _line(label: str, record: Record) -> list[str]:
    spent = record.spent[-1] if record.spent else ["", ""]
    best, parts = best_part(record), record.capacity_accuracy or {}
    answers = [
        record.final_accuracy,
        *map(parts.get, PARTS),
        best[1] if best else None,
        record.together_accuracy,
        record.chosen_accuracy,
    ]
    measured = [_shown(each if each is None else 100 * each) for each in answers]
    widths = " ".join(map(str, record.chosen_capacities or ()))
    first = [label, str(record.seed), _shown(late_accuracy(record)), _shown(worst_share(record))]
    return [*first, *map(str, spent), record.commit, *measured, widths]


def _shown(percent: float | None) -> str:
    return "" if percent is None else f"{percent:.3f}"
