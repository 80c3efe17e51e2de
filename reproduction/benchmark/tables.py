"""The tables of the reported runs: gains, accuracies, ranks, the worst served clients, and accuracies at equal cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from statistics import mean

from fedwidth.analysis.difference import Difference, correct
from fedwidth.analysis.wording import over_seeds
from fedwidth.analysis.yardsticks import EXCLUDE, FULL, SMALLEST, TO_BEAT
from fedwidth.reproduce.records import Record
from reproduction.benchmark.standings import (
    ANY_WIDTH,
    CAP,
    CAPS,
    LAST_EVALUATIONS,
    MIXES,
    NARROWER,
    ONLY_HALF,
    ONLY_QUARTER,
    YARDSTICKS,
    Standings,
    best_part,
    late_accuracy,
)
from reproduction.benchmark.tuning import ONE_WIDTH
from reproduction.markdown import make_table

NOT_RUN = "–"
CUT = " †"
AT_MOST, EQUAL = "≤ ", " ≈"
"""What stands before a gain of which a yardstick is missing, and behind one that is equal to zero within the margin."""
WORST = 0.1
"""The share of clients that are worst served."""
WORST_TITLE = "worst tenth of the clients"
BYTES, OPERATIONS = 0, 1
"""The places of both costs in `Record.spent`."""

Titles = Mapping[str, str]


def gain_table(
    standings: Standings, titles: Titles, mixes: Mapping[str, str] = MIXES, *, with_ranks: bool = True
) -> str:
    """The gain of every method in these mixes, with its interval, the best first; the mean of its ranks last.

    Of all gains of the table, those are in bold that are decided if all decisions are to be right (Holm).
    """
    begun = [mix for mix in mixes if standings.methods(mix)]
    gains = {
        (method, mix): gain
        for mix in begun
        for method in standings.methods(mix)
        if (gain := standings.gain(method, mix)) is not None
    }
    corrected = dict(zip(gains, correct([gain.difference for gain in gains.values()]), strict=True))
    ranks, several = mean_ranks(standings), with_ranks and len(begun) > 1
    rows = []
    for method in dict.fromkeys(method for mix in begun for method in standings.methods(mix)):
        own = [gains[method, mix].difference for mix in begun if (method, mix) in gains]
        cells = [
            _gain(corrected[method, mix], at_most=standings.lacks(method, mix))
            if (method, mix) in corrected
            else NOT_RUN
            for mix in begun
        ]
        place = ranks.get(method, len(ranks) + 1.0) if several else 0.0
        better = mean(mean(each.values) for each in own) if own else -100.0
        rank = [f"{ranks[method]:.1f}" if method in ranks else NOT_RUN] if several else []
        rows.append((place, -better, [titles[method], *cells, *rank]))
    head = ["", *(mixes[mix] for mix in begun), *(["mean rank"] if several else [])]
    return make_table(head, [row for *_, row in sorted(rows)])


def accuracy_table(standings: Standings, titles: Titles) -> str:
    """What every method and yardstick reached in every mix, methods by the mean of their ranks."""
    mixes = {mix: title for mix, title in (MIXES | CAPS).items() if standings.methods(mix)}
    ranks = mean_ranks(standings)
    methods = dict.fromkeys(method for mix in mixes for method in standings.methods(mix))
    rows = []
    for method in sorted(methods, key=lambda method: ranks.get(method, len(ranks) + 1.0)):
        rows.append((titles[method], [f"{method}/{mix}" for mix in mixes]))
    for kind in (EXCLUDE, SMALLEST, FULL):
        rows.append((f"*{kind}*", [YARDSTICKS[mix].get(kind, "") for mix in mixes]))
    found = standings.runs
    cells = [[title, *(_accuracy(found[own]) if own in found else NOT_RUN for own in labels)] for title, labels in rows]
    return make_table(["", *mixes.values()], cells)


def server_width_table(standings: Standings, titles: Titles) -> str:
    """What one model of each width reached that only devices train that can hold it, and what methods reached that give
    the narrower devices parts of it: for each mix, by the width of the server's model, the best of each row in bold."""
    added = [column for of in NARROWER.values() for column in of.values() if column != CAP]
    methods = dict.fromkeys(method for column in added for method in standings.methods(column))
    rows = []
    for mix, of in NARROWER.items():
        alone = [ANY_WIDTH[mix].get(kind, "") for kind in (EXCLUDE, ONLY_HALF, ONLY_QUARTER, SMALLEST)]
        rows.append([MIXES[mix], titles[ONE_WIDTH], *_best_in_bold(standings, alone)])
        for method in methods:
            own = [f"{method}/{column}" for column in (mix, *of.values())]
            rows.append(["", titles[method], *_best_in_bold(standings, own), ""])
    return make_table(["devices", "who trains", "1", "1/2", "1/4", "1/16"], rows)


def _best_in_bold(standings: Standings, labels: Sequence[str]) -> list[str]:
    """The accuracies of these runs, the highest mean in bold."""
    means = {label: mean(standings.accuracies(label).values()) for label in labels if label in standings.runs}
    best = max(means, key=means.__getitem__, default=None)
    texts = [_accuracy(standings.runs[label]) if label in means else NOT_RUN for label in labels]
    return [f"**{text}**" if label == best else text for label, text in zip(labels, texts, strict=True)]


def _gain(difference: Difference, *, at_most: bool) -> str:
    gain, _, interval = str(difference).partition(" ")
    if not difference.tells_spread:
        return f"{AT_MOST * at_most}{gain}, {'two seeds alike' if len(difference.values) > 1 else 'one seed'}"
    shown = f"**{gain}**" if difference.is_decided else gain
    return f"{AT_MOST * at_most}{shown} {interval}{EQUAL * difference.is_equal}"


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
    of_mixes = (*YARDSTICKS.values(), *ANY_WIDTH.values())
    labels = dict.fromkeys(label for of_mix in of_mixes for label in of_mix.values())
    rows = []
    for label in (label for label in labels if label in standings.runs):
        kind, _, mix = label.partition("/")
        title = ", ".join([titles[kind], *([(MIXES | CAPS)[mix]] if mix else [])])
        rows.append([title, *(show(standings.runs[label]) for show in (_accuracy, _worst, _seeds))])
    return make_table(["", "accuracy", WORST_TITLE, "seeds"], rows)


def mix_table(standings: Standings, mix: str, titles: Titles) -> str:
    """What was reached in one mix, and what it cost: methods, the best first, then what they have to beat, then the
    upper end of the scale.

    Accuracies at equal cost are within what a method of the mix spends at most: a run that costs more is cut there, in
    the middle of its schedule, and marked.
    """
    methods = [f"{method}/{mix}" for method in standings.methods(mix)]
    budgets = [
        max((_total(record, cost) for label in methods for record in standings.runs[label].values()), default=0.0)
        for cost in (BYTES, OPERATIONS)
    ]
    rows = []
    for label in _labels(standings, mix):
        runs = standings.runs[label]
        within = [_within(runs, cost, budget) for cost, budget in enumerate(budgets)]
        spent = [mean(_total(record, cost) for record in runs.values()) for cost in (BYTES, OPERATIONS)]
        shown = [f"{spent[BYTES] / 1e9:.1f}", f"{spent[OPERATIONS] / 1e12:.0f}"] if all(spent) else [NOT_RUN] * 2
        rows.append([titles[label.partition("/")[0]], _accuracy(runs), _worst(runs), *within, *shown, _seeds(runs)])
    head = [f"within {budgets[BYTES] / 1e9:.0f} GB", f"within {budgets[OPERATIONS] / 1e12:.0f} T multiply-adds"]
    return make_table(["", "accuracy", WORST_TITLE, *head, "GB", "T multiply-adds", "seeds"], rows)


def _total(record: Record, cost: int) -> float:
    """What all clients of a run spent; 0 where it is not recorded."""
    return record.spent[-1][cost] if record.spent else 0.0


def _within(runs: Mapping[int, Record], cost: int, budget: float) -> str:
    """The accuracy within a budget, with a mark where runs were cut."""
    reached = [accuracy_within(record, cost, budget) for record in runs.values()]
    if None in reached:
        return NOT_RUN
    cut = any(_total(record, cost) > budget for record in runs.values())
    return over_seeds([each for each in reached if each is not None], 1) + (CUT if cut else "")


def worst_share(record: Record) -> float | None:
    """The mean accuracy in percent of the clients that the final model serves worst; None where it is not recorded."""
    if record.clients is None:
        return None
    known = sorted(100 * accuracy for accuracy, _ in record.clients if accuracy is not None)
    return mean(known[: max(1, round(WORST * len(known)))]) if known else None


def device_table(standings: Standings, mix: str, titles: Titles) -> str | None:
    """The accuracy of the sub-model that the devices of each size can run, in the last round; None before one was
    measured. Sizes are those of devices, also where the server's model is narrower than the whole.

    Where validation samples have seen them too, also of the one that does best on those, and where they were asked
    together, of all of them.

    A model that everyone trains runs on all devices, so that its accuracy is what the sub-models have to beat.
    """
    measured = {
        label: [(seed, record) for seed, record in standings.runs[label].items() if record.capacity_accuracy]
        for label in _labels(standings, mix)
    }
    sizes = {
        size: Fraction(size) * Fraction(record.settings["model"]["width"])
        for runs in measured.values()
        for _, record in runs
        for size in record.capacity_accuracy or {}
    }
    if not sizes:
        return None
    rows = []
    shown = [record for runs in measured.values() for _, record in runs]
    validated = any(record.capacity_validation for record in shown)
    asked = any(record.together_accuracy is not None for record in shown)
    for label, runs in measured.items():
        if runs:
            records = [record for _, record in runs]
            cells = [_of_sizes(records, size) for size in sizes]
            cells += [of_validation(records)] if validated else []
            cells += [_of_all([record.together_accuracy for record in records])] if asked else []
            rows.append([titles[label.partition("/")[0]], *cells, _seeds(seed for seed, _ in runs)])
    if (smallest := YARDSTICKS[mix][SMALLEST]) in standings.runs:
        runs = list(standings.runs[smallest].items())
        last = over_seeds([100 * record.final_accuracy for _, record in runs], 1)
        rows.append([titles[smallest], *[last] * (len(sizes) + validated + asked), _seeds(seed for seed, _ in runs)])
    chosen = ["best by validation"] * validated + ["all together"] * asked
    return make_table(["last round, sub-model of", *map(str, sizes.values()), *chosen, "seeds"], rows)


def of_validation(records: Sequence[Record]) -> str:
    """The accuracy of the sub-models that do best on validation samples, and their sizes; where all runs have some."""
    found: dict[str, list[float]] = {}
    for record in records:
        best = best_part(record)
        if best is None:
            return NOT_RUN
        found.setdefault(best[0], []).append(100 * best[1])
    width = Fraction(records[0].settings["model"]["width"])
    sizes = ", ".join(str(Fraction(size) * width) for size in sorted(found, key=float, reverse=True))
    return f"{over_seeds([value for values in found.values() for value in values], 1)} ({sizes})"


def _of_sizes(records: Sequence[Record], size: str) -> str:
    """The accuracy of sub-models of one size, where all of these runs have one."""
    return _of_all([(record.capacity_accuracy or {}).get(size) for record in records])


def _of_all(found: Sequence[float | None]) -> str:
    """The mean of accuracies, where all of these runs have one."""
    return NOT_RUN if None in found else over_seeds([100 * each for each in found if each is not None], 1)


def accuracy_within(record: Record, cost: int, budget: float) -> float | None:
    """The mean of the last evaluations that a run made within a budget, in percent.

    None where it made none, or where those around the end of the budget lie further apart than at the end of a run.
    """
    if record.spent is None:
        return None
    made = sum(spent[cost] <= budget for spent in record.spent)
    first, rows = max(0, made - LAST_EVALUATIONS), record.evaluations
    around, late = ([int(row[0] or 0) for row in some] for some in (rows[first : made + 1], rows[-2:]))
    if any(after - before > late[-1] - late[0] for before, after in pairwise(around)):
        return None
    last = [100 * float(row[1]) for row in rows[first:made] if row[1] is not None]
    return mean(last) if last else None


def _accuracy(runs: Mapping[int, Record]) -> str:
    return over_seeds([late_accuracy(record) for record in runs.values()], 1)


def _worst(runs: Mapping[int, Record]) -> str:
    found = [worst_share(record) for record in runs.values()]
    return over_seeds([each for each in found if each is not None], 1) if None not in found else NOT_RUN


def _seeds(runs: Iterable[int]) -> str:
    """The seeds by their numbers; one alone is said to be one, so that it is not taken for a count."""
    first, *others = (str(seed) for seed in runs)
    return ", ".join([first, *others]) if others else f"{first} only"


def _labels(standings: Standings, mix: str) -> list[str]:
    """The runs of a mix: its methods, the best first, and the yardsticks all of them share."""
    methods = sorted(
        (f"{method}/{mix}" for method in standings.methods(mix)),
        key=lambda label: -mean(standings.accuracies(label).values()),
    )
    return [*methods, *(label for kind in (*TO_BEAT, FULL) if (label := YARDSTICKS[mix].get(kind)) in standings.runs)]
