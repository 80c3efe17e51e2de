"""FedEcover: every unit is trained before any is trained twice (Liang et al. 2025, Algorithm 1).

A client draws from the units that are unused. Where these are too few it takes all of them, every unit counts as unused
again, and it draws what it still lacks from the others. This goes on over clients and rounds. Here the clients of a
round draw in the order of the cohort, in one step: what a client holds depends on the seed, the round and what was
unused as the round began, and on nothing that happens during it.

The method's other half, a server step that shrinks, is a setting any method can take (docs/methods/fedecover.md).

What it remembers: `used.{group}`, which units have been used since all were unused.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedwidth.errors import SelectionError
from fedwidth.methods.definition import ROUNDING, Closing, Method, Moment, per_group
from fedwidth.randomness import numpy_generator


def units(size: int, kept: int, at: Moment) -> Tensor:
    """The units that this client draws when all before it in the cohort have drawn."""
    used = at.memory.get(f"used.{at.group}", torch.zeros(size, dtype=torch.bool))
    if used.shape != (size,) or used.dtype != torch.bool:
        raise SelectionError(f"the memory does not know the {size} units of group '{at.group}': it is another plan's")
    numbers, place = _numbers(size, kept, at)
    drawn = draw(used.numpy().tobytes(), numbers, at.seed, at.round, at.group_number)
    return torch.from_numpy(np.sort(drawn[place]))


def _numbers(size: int, kept: int, at: Moment) -> tuple[tuple[int, ...], int]:
    """How many units each client of the round draws, and the place of this client among them.

    If the caller did not say who takes part, all have this client's capacity; with more clients than units, places
    begin anew.
    """
    assert at.plan is not None
    if not at.cohort:
        return (kept,) * min(at.clients, size), at.client % size
    if at.client >= len(at.cohort):
        raise SelectionError(f"client {at.client} is not one of the {len(at.cohort)} of the cohort, counted from 0")
    capacities = [capacity for _, capacity in at.cohort]
    counts = {each: at.plan.counts(each, at.options["rounding"])[at.group] for each in set(capacities)}
    numbers = [counts[each] for each in capacities]
    numbers[at.client] = kept  # which may be asked for as if this client had another capacity
    return tuple(numbers), at.client


@lru_cache(maxsize=256)
def draw(used: bytes, numbers: tuple[int, ...], seed: int, round: int, group: int) -> tuple[np.ndarray, ...]:
    """The units of every client of a round: client c gets `numbers[c]` of them. `used` has one byte for each unit."""
    generator = numpy_generator(seed, "unused", round, group)
    unused = generator.permutation(np.flatnonzero(np.frombuffer(used, dtype=np.bool_) == 0))
    drawn = []
    for number in numbers:
        own, unused = unused[:number], unused[number:]
        if len(own) < number:
            others = generator.permutation(_all_but(own, len(used)))
            more = others[: number - len(own)]
            unused, own = generator.permutation(_all_but(more, len(used))), np.concatenate([own, more])
        drawn.append(own)
    return tuple(drawn)


def _all_but(units: np.ndarray, size: int) -> np.ndarray:
    """The other units of a group, in order."""
    others = np.ones(size, dtype=np.bool_)  # many times as fast as `np.setdiff1d`
    others[units] = False
    return np.flatnonzero(others)


def note(closing: Closing) -> dict[str, Tensor]:
    """Which units have been used since all were unused, by the clients whose work counts."""
    memory = {}
    for name, group in closing.plan.groups.items():
        used = closing.memory.get(f"used.{name}", torch.zeros(group.size, dtype=torch.bool)).clone()
        for task in closing.tasks:
            if task.index.units is None:
                raise SelectionError("units can be drawn in turn only where a whole width group keeps the same ones")
            held = torch.zeros_like(used)
            held[task.index.units[name]] = True
            # Whoever holds all that was unused, and more, drew the rest when all were unused again.
            used = held & used if bool((held | used).all()) and bool((held & used).any()) else held | used
        memory[f"used.{name}"] = used
    return memory


METHOD = Method(
    name="fedecover",
    title="FedEcover",
    paper="Liang et al. 2025",
    equation="Algorithm 1",
    choose=per_group(units),
    options={"rounding": ROUNDING},
    reads=("memory",),
    advance=note,
)
