"""FedMinOccurances: units are drawn with odds N + 1 - n, n being how many of the previous round's N clients held the
unit (thesis Eq. 2.3). The first round is Federated Dropout's. The name is spelt as in the thesis.

What it remembers: `seen.{group}`, how many clients of the last round held each unit, and `clients`, their number.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedwidth.core.selection import least_seen, random
from fedwidth.errors import SelectionError
from fedwidth.methods.definition import ROUNDING, Closing, Method, Moment, per_group


def units(size: int, kept: int, at: Moment) -> Tensor:
    """Draw without replacement, rarely held units more often (thesis Eq. 2.3); all alike in the first round."""
    if not at.memory:
        return random(size, kept, at.generator())
    seen = at.memory.get(f"seen.{at.group}")
    if seen is None or len(seen) != size or "clients" not in at.memory:
        raise SelectionError(f"the memory does not count the {size} units of group '{at.group}': it is another plan's")
    clients = int(at.memory["clients"])
    if seen.numpy().view(np.uint64).max() > clients:  # a number below 0 is a very large one there
        raise SelectionError(f"a memory of {clients} clients cannot count {seen.tolist()} for '{at.group}'")
    return least_seen(size, kept, seen, clients=clients, generator=at.generator())


def count(closing: Closing) -> dict[str, Tensor]:
    """Count how many clients of the round held each unit."""
    seen = {f"seen.{name}": torch.zeros(g.size, dtype=torch.long) for name, g in closing.plan.groups.items()}
    for task in closing.tasks:
        if task.index.units is None:
            raise SelectionError("units can be counted only where a whole width group keeps the same ones")
        for name, kept in task.index.units.items():
            seen[f"seen.{name}"][kept] += 1
    return seen | {"clients": torch.tensor(len(closing.tasks))}


METHOD = Method(
    name="fedminoccurances",
    title="FedMinOccurances",
    paper="Swope 2024",
    equation="thesis Eq. 2.3",
    choose=per_group(units),
    options={"rounding": ROUNDING},
    reads=("memory",),
    advance=count,
)
