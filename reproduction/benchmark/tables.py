"""The tables of the reported runs: gains, accuracies, ranks, the worst served clients, and accuracies at equal cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from statistics import mean

from fedwidth.analysis.difference import correct
from fedwidth.analysis.wording import over_seeds
from fedwidth.analysis.yardsticks import FULL, SMALLEST, TO_BEAT
from fedwidth.reproduce.records import Record
from reproduction.benchmark.standings import LAST_EVALUATIONS, MIXES, YARDSTICKS, Standings, late_accuracy
from reproduction.markdown import make_table

NOT_RUN = "–"
WORST = 0.1
"""The share of clients that are worst served."""
WORST_TITLE = "worst tenth of the clients"
BYTES, OPERATIONS = 0, 1
"""The places of both costs in `Record.spent`."""

Titles = Mapping[str, str]


def gain_table(standings: Standings, titles: Titles) -> str:
    """The gain of every method in every mix, with its interval; the mean of its ranks last, the best first."""
    begun = [mix for mix in MIXES if standings.methods(mix)]
    gains = {
        (method, mix): gain
        for mix in begun
        for method in standings.methods(mix)
        if (gain := standings.gain(method, mix)) is not None
    }
    corrected = dict(zip(gains, correct([gain.difference for gain in gains.values()]), strict=True))
    ranks = mean_ranks(standings)
    rows = []
    for method in sorted(ranks, key=lambda method: (ranks[method], method)):
        cells = [str(corrected[method, mix]) if (method, mix) in corrected else NOT_RUN for mix in begun]
        rows.append([titles[method], *cells, f"{ranks[method]:.1f}"])
    return make_table(["", *(MIXES[mix] for mix in begun), "mean rank"], rows)


def mean_ranks(standings: Standings) -> dict[str, float]:
    """The rank of every method by its accuracy, averaged over the mixes it was run in; 1 is the best.

    In a mix only seeds count that all its methods were run with: seeds differ by more than methods do.
    """
    places: dict[str, list[int]] = {}
    for mix in MIXES:
        by_seed = {method: standings.accuracies(f"{method}/{mix}") for method in standings.methods(mix)}
        common = set.intersection(*map(set, by_seed.values())) if by_seed else set()
        if not common:
            continue
        reached = {method: mean(found[seed] for seed in common) for method, found in by_seed.items()}
        for method, own in reached.items():
            places.setdefault(method, []).append(1 + sum(other > own for other in reached.values()))
    return {method: mean(found) for method, found in places.items()}


def yardstick_table(standings: Standings, titles: Titles) -> str:
    """What each yardstick reached that was run, and the worst served tenth of its clients."""
    labels = dict.fromkeys(label for of_mix in YARDSTICKS.values() for label in of_mix.values())
    rows = []
    for label in (label for label in labels if label in standings.runs):
        kind, _, mix = label.partition("/")
        title = ", ".join([titles[kind], *([MIXES[mix]] if mix else [])])
        rows.append([title, *(show(standings.runs[label]) for show in (_accuracy, _worst, _seeds))])
    return make_table(["", "accuracy", WORST_TITLE, "seeds"], rows)


def accuracy_table(standings: Standings, mix: str, titles: Titles) -> str:
    """Accuracies in one mix: methods, the best first, then what they have to beat, then the upper end of the scale."""
    return _table(standings, mix, titles, "accuracy", _accuracy)


def weak_table(standings: Standings, mix: str, titles: Titles) -> str:
    """The mean accuracy of the worst served tenth of the clients, each on its own data."""
    return _table(standings, mix, titles, WORST_TITLE, _worst)


def worst_share(record: Record) -> float | None:
    """The mean accuracy in percent of the clients that the final model serves worst; None where it is not recorded."""
    if record.clients is None:
        return None
    known = sorted(100 * accuracy for accuracy, _ in record.clients if accuracy is not None)
    return mean(known[: max(1, round(WORST * len(known)))]) if known else None


def device_table(standings: Standings, mix: str, titles: Titles) -> str | None:
    """The accuracy of the sub-model that the devices of each size can run; None before one was measured.

    A model that everyone trains runs on all devices, so that its accuracy is what the sub-models have to beat.
    """
    measured = {
        label: {
            seed: record.capacity_accuracy for seed, record in standings.runs[label].items() if record.capacity_accuracy
        }
        for label in _labels(standings, mix)
        if "/" in label
    }
    sizes = dict.fromkeys(size for runs in measured.values() for found in runs.values() for size in found)
    if not sizes:
        return None
    rows = []
    for label, runs in measured.items():
        if runs:
            each = ([found[size] for found in runs.values()] for size in sizes)
            shown = [over_seeds([100 * value for value in values if value is not None], 1) for values in each]
            rows.append([titles[label.partition("/")[0]], *shown, _seeds(runs)])
    smallest = YARDSTICKS[mix][SMALLEST]
    if smallest in standings.runs:
        runs = standings.runs[smallest]
        rows.append([titles[smallest], *[_accuracy(runs)] * len(sizes), _seeds(runs)])
    return make_table(["sub-model of", *(str(Fraction(size)) for size in sizes), "seeds"], rows)


def budget_table(standings: Standings, mix: str, titles: Titles, cost: int) -> str:
    """Accuracies within the cost of the method that spends least: the last evaluations that others made until then."""
    found = [record for method in standings.methods(mix) for record in standings.runs[f"{method}/{mix}"].values()]
    totals = [record.spent[-1][cost] for record in found if record.spent]
    budget = min(totals, default=0.0)
    title = f"accuracy within {budget:.3g} {'bytes' if cost == BYTES else 'multiply-adds'}"

    def within(runs: Mapping[int, Record]) -> str:
        reached = [accuracy_within(record, cost, budget) for record in runs.values()]
        return over_seeds([each for each in reached if each is not None], 1) if None not in reached else NOT_RUN

    return _table(standings, mix, titles, title, within)


def accuracy_within(record: Record, cost: int, budget: float) -> float | None:
    """The mean of the last evaluations that a run made within a budget, in percent; None where it made none."""
    if record.spent is None:
        return None
    made = [row[1] for row, spent in zip(record.evaluations, record.spent, strict=True) if spent[cost] <= budget]
    last = [100 * float(value) for value in made[-LAST_EVALUATIONS:] if value is not None]
    return mean(last) if last else None


def _accuracy(runs: Mapping[int, Record]) -> str:
    return over_seeds([late_accuracy(record) for record in runs.values()], 1)


def _worst(runs: Mapping[int, Record]) -> str:
    found = [worst_share(record) for record in runs.values()]
    return over_seeds([each for each in found if each is not None], 1) if None not in found else NOT_RUN


def _seeds(runs: Collection[int]) -> str:
    return ", ".join(str(seed) for seed in runs)


def _labels(standings: Standings, mix: str) -> list[str]:
    """The runs of a mix: its methods, the best first, and the yardsticks all of them share."""
    methods = sorted(
        (f"{method}/{mix}" for method in standings.methods(mix)),
        key=lambda label: -mean(standings.accuracies(label).values()),
    )
    return [*methods, *(label for kind in (*TO_BEAT, FULL) if (label := YARDSTICKS[mix].get(kind)) in standings.runs)]


def _table(
    standings: Standings, mix: str, titles: Titles, title: str, show: Callable[[Mapping[int, Record]], str]
) -> str:
    rows = []
    for label in _labels(standings, mix):
        runs = standings.runs[label]
        rows.append([titles[label.partition("/")[0]], show(runs), _seeds(runs)])
    return make_table(["", title, "seeds"], rows)
