"""The sub-model that stands for a width, wherever "the sub-model of this capacity" is asked for.

It is the one that the first client of this capacity was given in the last round: first in the order of the cohort, and
chosen with the run's seed, the client's place, the size of the cohort and the method's memory as the round began. Where
the cohort had no client of this capacity, it is what a client in the first place would have been given. Where the
method keeps a model for each width, it is that model after the round.

With some methods clients of one capacity hold different units in a round. One sub-model then says little about the
others, so after the last round of a run the mean and the spread over several draws (`evaluation.draws`, ten) are given
beside it. The draws are the places 0, 1, 2 … of the last round's cohort, each as if its client had this capacity. Where
the cohort has fewer clients, the places of the round before follow, in a cohort of the same size, and so on back to the
first round: a very short run has fewer draws. The method's memory is that of the last round throughout, as earlier ones
are not kept.

Where the method says what a device of a capacity runs (`Method.serves`), that stands for it.

Where every client has a model of its own, that of the first client of this capacity stands for it, and there is none
where nobody in the cohort has the capacity.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedwidth.core.index import Index
from fedwidth.core.submodel import State
from fedwidth.methods import Memory, Method
from fedwidth.plan.plan import Plan

DRAWS = 10
"""How many sub-models of a capacity are measured, where nothing else is said."""


@dataclass(frozen=True)
class LastRound:
    """What the choices of the last round depended on."""

    round: int
    cohort: Sequence[tuple[int, float]]
    """The clients that were asked to train, in order, each with its capacity; empty where all were excluded."""
    seed: int
    memory: Memory = field(default_factory=dict)
    """What the method remembered as the round began; as it ended, where that holds the models of the widths."""
    state: State | None = None
    """The global state as the round began."""
    own: Mapping[int, Memory] = field(default_factory=dict)
    """What clients remember now that the round has ended, by their numbers."""


def representative_index(method: Method, plan: Plan, capacity: float, last: LastRound) -> Index:
    """The index of the sub-model that stands for this capacity (see the top of this file)."""
    places = (place for place, (_, own) in enumerate(last.cohort) if own == capacity)
    return _select(method, plan, capacity, last, round=last.round, place=next(places, 0))


def drawn_indexes(method: Method, plan: Plan, capacity: float, last: LastRound, draws: int = DRAWS) -> list[Index]:
    """The indexes of so many draws, the last round's first; fewer where fewer places have been drawn so far."""
    clients = max(1, len(last.cohort))
    places = [divmod(draw, clients) for draw in range(min(draws, clients * (last.round + 1)))]
    return [_select(method, plan, capacity, last, round=last.round - ago, place=place) for ago, place in places]


def by_capacity(
    method: Method,
    plan: Plan,
    capacities: Sequence[float],
    *,
    last: LastRound,
    measure: Callable[[Index, float], Mapping[str, float]],
    metric: str = "accuracy",
    draws: int = DRAWS,
) -> dict[str, dict[str, float | None]]:
    """What the metrics say of the sub-models at these capacities, given what an index scores at a capacity.

    Scores have names, such as accuracy (the metric) and validation_accuracy, where validation samples are seen as well.
    `capacity_accuracy` is of the sub-model that stands for each capacity. With several `draws`, and where the method
    gives clients of one capacity different units, `capacity_accuracy_mean` and `capacity_accuracy_spread` are the mean
    and the sample standard deviation over the draws (None for a single draw). What is equal is measured once. Where the
    metric is another, its name stands in place of accuracy.
    """
    known: dict[tuple[str, float], Mapping[str, float]] = {}

    def measured(index: Index, capacity: float) -> Mapping[str, float]:
        at = index.key, 1.0 if index.is_whole else capacity
        if at not in known:
            known[at] = measure(index, at[1])
        return known[at]

    name = f"capacity_{metric}"
    found: dict[str, dict[str, Any]] = {name: {}}
    owned = "own" in method.reads
    differ = draws > 1 and not owned and method.serves is None and not method.shared(method.values)
    for capacity in capacities:
        key = f"{capacity:g}"
        if owned and all(own != capacity for _, own in last.cohort):
            found[name][key] = None
            continue
        for score, value in measured(representative_index(method, plan, capacity, last), capacity).items():
            found.setdefault(f"capacity_{score}", {})[key] = value
        if differ:
            drawn = [measured(index, capacity) for index in drawn_indexes(method, plan, capacity, last, draws)]
            for score in drawn[0]:
                values = [scores[score] for scores in drawn]
                found.setdefault(f"capacity_{score}_mean", {})[key] = statistics.fmean(values)
                spread = statistics.stdev(values) if len(values) > 1 else None
                found.setdefault(f"capacity_{score}_spread", {})[key] = spread
    return found


def _select(method: Method, plan: Plan, capacity: float, last: LastRound, *, round: int, place: int) -> Index:
    clients = max(1, len(last.cohort))
    method = method if method.serves is None else replace(method, choose=method.serves)
    number = last.cohort[place][0] if place < len(last.cohort) else place
    found: Index = method.select(
        plan,
        capacity=capacity,
        round=round,
        client=place,
        clients=clients,
        seed=last.seed,
        memory=last.memory,
        state=last.state,
        number=number,
        cohort=last.cohort,
        own=last.own,
    )
    return found
