"""FedAvg: every client trains the whole model, whatever its capacity: the benchmark under perfect conditions."""

from __future__ import annotations

from collections.abc import Mapping

from fedwidth.core.index import Index
from fedwidth.methods.definition import Method, Moment
from fedwidth.plan.plan import Plan


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> Index:
    """Every client holds everything."""
    del counts, at
    return Index.whole(plan)


METHOD = Method(
    name="fedavg",
    title="FedAvg",
    paper="McMahan et al. 2017",
    equation="FedRolex Eq. 1",
    choose=choose,
    shared=lambda _: True,
)
