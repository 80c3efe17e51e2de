"""FedMinOccurances: units are drawn with odds N + 1 - n, n being how many of the previous round's N clients held the
unit (thesis Eq. 2.3). The first round is Federated Dropout's. The name is spelt as in the thesis.
"""

from __future__ import annotations

from torch import Tensor

from fedwidth.errors import SelectionError
from fedwidth.methods.definition import Method, Moment, per_group
from fedwidth.methods.options import ROUNDING
from fedwidth.selection import least_seen, random


def units(size: int, kept: int, at: Moment) -> Tensor:
    """Weighted draw without replacement (Eq. 2.3); uniform where there is no history yet."""
    if at.history is None:
        return random(size, kept, at.generator())
    seen = at.history.seen.get(at.group)
    if seen is None or len(seen) != size:
        raise SelectionError(f"the history does not count the {size} units of group '{at.group}': it is another plan's")
    return least_seen(size, kept, seen, clients=at.history.clients, generator=at.generator())


METHOD = Method(
    name="fedminoccurances",
    title="FedMinOccurances",
    paper="Swope 2024",
    equation="thesis Eq. 2.3",
    choose=per_group(units),
    options={"rounding": ROUNDING},
    remembers=True,
)
