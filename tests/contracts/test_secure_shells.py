"""Shells of every nested method on every model of the zoo (number 7 of the notes on secure sums)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from contract_models import MODELS, traced

from fedwidth.core.index import Index
from fedwidth.methods import method
from fedwidth.training.server.layout import layout_of_device, layouts_of, unit_levels
from fedwidth.training.server.words import summed_tensors

NESTED = [
    ("fedrolex", {}),
    ("fedrolex", {"direction": "backward"}),
    ("heterofl", {}),
    ("fjord", {}),
    ("fedimportance", {}),
    ("feddropout", {"draw": "round"}),
]
CAPACITIES = (0.25, 0.5, 1.0)


def in_order(name: str):
    return pytest.param(name, marks=pytest.mark.slow) if name.startswith("zoo ") else name


@pytest.mark.parametrize("name", [in_order(name) for name in MODELS])
def test_7_shells_partition_what_is_held_and_devices_lay_words_like_the_server(name):
    """Every element has a number of its own: each lies in one shell, and all holders have a shell's in one order.

    A device knows how many units it has and the level of each, not which they are, and finds the same order. The rounds
    are such that windows wrap around in one group or another.
    """
    _, plan, _, state = traced(name)
    names = summed_tensors(plan, state)
    ends = np.cumsum([0, *(state[tensor].numel() for tensor in names)])
    numbers = {
        tensor: torch.arange(begin, begin + state[tensor].numel(), dtype=torch.float64).reshape(state[tensor].shape)
        for tensor, begin in zip(names, ends, strict=False)
    }
    everything = {tensor: numbers.get(plan.tied.get(tensor, tensor), value) for tensor, value in state.items()}
    for chosen, options in NESTED:
        for round in (0, 11):
            found = method(chosen, **options)
            tasks = found.assign(plan, list(enumerate(CAPACITIES)), round, seed=3, state=state)
            layouts = layouts_of({task.part.key: task.index for task in tasks}, names, by_shells=True)
            seen: dict[int, np.ndarray] = {}
            for task in tasks:
                layout, sub = layouts[task.part.key], task.part.cut(everything, plan)
                assert layout.words.length == sum(sub[tensor].numel() for tensor in names)
                elements = layout.flatten(sub)
                for segment, own in layout.words.split(elements).items():
                    assert np.array_equal(seen.setdefault(segment, own), own)
                prefix = Index.of_units(plan, {group: range(count) for group, count in task.index.counts.items()})
                levels = unit_levels(task.index, layouts.values())
                assert levels.size == task.index.number_of_units
                there = layout_of_device(prefix, names, layout.words.segments, levels)
                assert there.words.segments == layout.words.segments
                assert there.words.lengths == layout.words.lengths
                assert np.array_equal(there.flatten(sub), elements)
            union = np.sort(np.concatenate(list(seen.values())))
            assert np.array_equal(union, np.arange(ends[-1])), "each element once: the widest client holds all"
