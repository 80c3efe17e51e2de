"""FedLadder: networks of halving widths, side by side in one model. A method of this project; no paper.

The wide model starts as networks of 1/2, 1/4, 1/8 … of its width that share inputs and outputs. Weights between units
of different networks start at 0, and stay there, because no client holds units of two. There is one network for each
kind of device: a client trains the widest one that it can hold, as a whole, and every third turn the next narrower one.
So every network learns from all devices that can hold it, nobody trains a part of a network, and what the server has in
the end is their sum, an ensemble in one model.

Where all devices are of one kind there is one network, which all of them train.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.methods.definition import ROUNDING, Beginning, Method, Moment, Need, Option
from fedwidth.methods.shared.tiles import zeroed_outside
from fedwidth.plan.plan import Plan

WIDEST = 0.5
"""The widest of several networks: all others then fit beside it."""


def widths_of(enrolled: Sequence[float]) -> tuple[float, ...]:
    """The widths of the networks for devices of these capacities, from wide to narrow.

    >>> widths_of([1, 0.5, 0.25, 0.125]), widths_of([1, 0.3, 0.3]), widths_of([0.25, 0.25])
    ((0.5, 0.25, 0.125), (0.5, 0.25), (0.25,))
    """
    found = {_halved(float(capacity)) for capacity in enrolled}
    return tuple(sorted(found, reverse=True)) if len(found) > 1 else (float(min(enrolled)),)


def _halved(capacity: float) -> float:
    """The widest of 1/2, 1/4, 1/8 … that a device can hold."""
    width = WIDEST
    while width > capacity:
        width /= 2
    return width


@lru_cache(maxsize=8)
def networks(plan: Plan, widths: tuple[float, ...], rounding: str) -> tuple[Index, ...]:
    """What each network holds, one after the other; where a layer has too few units, the last networks share some."""
    ends = dict.fromkeys(plan.groups, 0)
    found = []
    for width in widths:
        units = {}
        for name, number in plan.counts(width, rounding).items():
            begin = min(ends[name], plan.groups[name].size - number)
            ends[name] = begin + number
            units[name] = torch.arange(begin, ends[name])
        found.append(Index.of_units(plan, units))
    return tuple(found)


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> Index:
    """The client holds the network of its kind, or in some turns a narrower one."""
    enrolled = at.enrolled or [capacity for _, capacity in at.cohort] or [float(at.capacity)]
    widths = widths_of(enrolled)
    there = networks(plan, widths, at.options["rounding"])
    fitting = [index for width, index in zip(widths, there, strict=True) if width <= at.capacity]
    if fitting:
        return fitting[steps_down(at.round + at.client + 1, at.options["descend"], len(fitting) - 1)]
    units = there[-1].units  # asked about a device that is narrower than all there are
    assert units is not None
    return Index.of_units(plan, {name: kept[: counts[name]] for name, kept in units.items()})


def serve(plan: Plan, counts: Mapping[str, int], at: Moment) -> Index:
    """A device runs the network of its kind, and one that can hold the whole model runs all of them."""
    if at.capacity >= 1:
        return Index.whole(plan)
    return choose(plan, counts, replace(at, options={**at.options, "descend": 0}))


def steps_down(turn: int, descend: int, most: int) -> int:
    """How many networks narrower than its own a client trains in this turn: one every third, two every ninth …

    >>> [steps_down(turn, descend=3, most=2) for turn in (1, 2, 3, 6, 9, 27)], steps_down(9, descend=0, most=2)
    ([0, 0, 1, 1, 2, 2], 0)
    """
    steps = 0
    while descend and turn % descend == 0 and steps < most:
        turn, steps = turn // descend, steps + 1
    return steps


def start(beginning: Beginning) -> dict[str, Tensor]:
    """The first state, with every weight that belongs to no network set to 0."""
    plan = beginning.plan
    there = networks(plan, widths_of(beginning.enrolled), beginning.options["rounding"])
    return zeroed_outside(beginning.state, plan, there)


def _is_period(value: Any) -> bool:
    return type(value) is int and (value == 0 or value > 1)


METHOD = Method(
    name="fedladder",
    title="FedLadder",
    paper="this project",
    equation="docs/methods/fedladder.md",
    choose=choose,
    serves=serve,
    options={
        "rounding": ROUNDING,
        "descend": Option(
            3,
            "0 or a whole number of at least 2",
            _is_period,
            "turns after which a client trains the next narrower network once; 0: never",
        ),
    },
    start=start,
    needs={"training.scaler": Need(False, "every network is trained as it is used, at its own width")},
)
