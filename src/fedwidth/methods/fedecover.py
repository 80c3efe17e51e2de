"""FedEcover: units are dealt from a deck, so that every unit is trained before any is trained twice.

A client draws from the units not used yet. Where these run out it takes the rest, all units are shuffled anew, and it
draws what it still lacks from the others. The deck goes on over clients and rounds. Here the clients of a round are
dealt in the order of the cohort, in one step: what a client holds depends on the seed, the round and the deck as the
round began, and on nothing that happens during it.

The method's other half, a server step that shrinks, is a setting any method can take (docs/methods/fedecover.md).

What it remembers: `used.{group}`, which units have been used since the last shuffle.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedwidth.errors import SelectionError
from fedwidth.methods.closing import Closing
from fedwidth.methods.definition import Method, Moment, per_group
from fedwidth.methods.options import ROUNDING
from fedwidth.randomness import numpy_generator


def units(size: int, kept: int, at: Moment) -> Tensor:
    """What this client is dealt when all before it in the cohort have been."""
    assert at.plan is not None
    used = at.memory.get(f"used.{at.group}", torch.zeros(size, dtype=torch.bool))
    if used.shape != (size,) or used.dtype != torch.bool:
        raise SelectionError(f"the memory does not know the {size} units of group '{at.group}': it is another plan's")
    capacities = [capacity for _, capacity in at.cohort] or [at.capacity] * at.clients
    counts = {each: at.plan.counts(each, at.options["rounding"])[at.group] for each in set(capacities)}
    numbers = tuple(counts[each] for each in capacities)
    dealt = deal(used.numpy().tobytes(), numbers, at.seed, at.round, at.group_number)
    return torch.from_numpy(np.sort(dealt[at.client]))


@lru_cache(maxsize=256)
def deal(used: bytes, numbers: tuple[int, ...], seed: int, round: int, group: int) -> tuple[np.ndarray, ...]:
    """The units of every client of a round, of whom client c gets `numbers[c]`; `used` has one byte for each unit."""
    generator = numpy_generator(seed, "deck", round, group)
    deck = generator.permutation(np.flatnonzero(np.frombuffer(used, dtype=np.bool_) == 0))
    everything, hands = np.arange(len(used)), []
    for number in numbers:
        hand, deck = deck[:number], deck[number:]
        if len(hand) < number:
            others = generator.permutation(np.setdiff1d(everything, hand))
            more = others[: number - len(hand)]
            deck, hand = generator.permutation(np.setdiff1d(everything, more)), np.concatenate([hand, more])
        hands.append(hand)
    return tuple(hands)


def note(closing: Closing) -> dict[str, Tensor]:
    """Which units have been used since the last shuffle, by the clients whose work counts."""
    memory = {}
    for name, group in closing.plan.groups.items():
        used = closing.memory.get(f"used.{name}", torch.zeros(group.size, dtype=torch.bool)).clone()
        for task in closing.tasks:
            if task.index.units is None:
                raise SelectionError("units can be dealt only where a whole width group keeps the same ones")
            held = torch.zeros_like(used)
            held[task.index.units[name]] = True
            # Whoever holds all that was left, and more, has the rest from a deck shuffled anew.
            used = held & used if bool((held | used).all()) and bool((held & used).any()) else held | used
        memory[f"used.{name}"] = used
    return memory


METHOD = Method(
    name="fedecover",
    title="FedEcover",
    paper="FedEcover 2025",
    equation="docs/methods/fedecover.md",
    choose=per_group(units),
    options={"rounding": ROUNDING},
    reads=("memory",),
    advance=note,
)
