"""CoCoFL: clients train as many neighbouring layers of the whole model as their memory allows (Pfeiffer et al. 2023).

All other layers are frozen: they take part in the forward pass, and need no gradients, no moments, and before the first
trained layer no activations. A device of capacity c has the memory that HeteroFL's sub-model takes, so that a capacity
means the same for both:

    budget(c)  =  M(sub-model of width c)               M: received + weights + moments + peak of a step
    run fits   :  M(model, run trained) - frozen weights  <=  budget(c)

because frozen weights stay as they were received and are held once. A client draws one of the longest runs that fit,
anew in every round. The server averages each tensor over the clients that trained it, and moves towards that average
by their share of the round's weight (Algorithm 2), as if the others had sent it back unchanged:

    tensor  <-  tensor + share (mean over those who trained it - tensor)

The paper's frozen layers compute in eight bits, with their norms folded in; here they compute as all others do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.core.narrow import skeleton
from fedwidth.methods.definition import Beginning, Closing, Memory, Method, Moment, choice
from fedwidth.methods.shared.layers import Layers, freeze, layers_of
from fedwidth.plan.plan import Plan
from fedwidth.randomness import numpy_generator

RUNS, BYTES = "runs", "bytes"
"""The server remembers for every capacity below 1 the runs that fit [runs, 2], each as its first layer and the one
after its last; and bytes, those there are and those that the last layer takes."""


def longest_runs(layers: int, fits: Callable[[int, int], bool]) -> list[tuple[int, int]]:
    """The runs of layers that fit and lie in no longer one that does, each as (first, stop).

    A longer run takes more, and so does one that begins earlier and ends alike.

    >>> longest_runs(4, lambda first, stop: stop - first <= 2)
    [(0, 2), (1, 3), (2, 4)]
    """
    found: list[tuple[int, int]] = []
    stop = 0
    for first in range(layers):
        stop = max(stop, first)
        while stop < layers and fits(first, stop + 1):
            stop += 1
        if stop > first and (not found or stop > found[-1][1]):
            found.append((first, stop))
    return found


def init(beginning: Beginning) -> dict[str, Tensor]:
    """The runs that fit each capacity; where only shapes are asked for, all layers but the last, and all but the first,
    stand for them."""
    plan, takes, layers = beginning.plan, beginning.takes, layers_of(beginning.plan)
    capacities = [capacity for capacity in beginning.enrolled if capacity < 1]
    if takes is None or beginning.model is None:
        less = max(1, len(layers) - 1)
        example = torch.tensor([[0, less], [len(layers) - less, len(layers)]])
        return {f"{RUNS}.{capacity:g}": example for capacity in capacities}
    model, memory = beginning.model, dict[str, Tensor]()
    whole = skeleton(model, plan, {})
    takes(whole)
    used = {name for name, parameter in whole.named_parameters() if parameter.grad is not None}

    @cache
    def needs(first: int, stop: int) -> float:
        trained = frozenset(name for layer in layers[first:stop] for name in layer)
        if not trained & used:  # nothing the loss depends on
            return 0.0
        made = freeze(skeleton(model, plan, {}), trained)
        frozen = sum(p.numel() * p.element_size() for p in made.parameters() if not p.requires_grad)
        return takes(made).growth - frozen

    def trains(first: int, stop: int) -> bool:
        return any(name in used for layer in layers[first:stop] for name in layer)

    held = sum(p.numel() * p.element_size() for p in model.parameters())
    last = max((number for number in range(len(layers)) if trains(number, number + 1)), default=0)
    for capacity in capacities:
        budget = takes(skeleton(model, plan, plan.counts(capacity))).growth
        runs: list[tuple[int, int]] = []
        if held < budget:
            found = longest_runs(len(layers), lambda first, stop, most=budget: needs(first, stop) <= most)  # type: ignore[misc]
            runs = [run for run in found if trains(*run)]
        memory[f"{RUNS}.{capacity:g}"] = torch.tensor(runs, dtype=torch.long).reshape(-1, 2)
        memory[f"{BYTES}.{capacity:g}"] = torch.tensor([budget, needs(last, last + 1)], dtype=torch.float64)
    return memory


def unfit(memory: Memory, capacity: float) -> str | None:
    """Why devices of this capacity can train no layer."""
    runs, sizes = memory.get(f"{RUNS}.{capacity:g}"), memory.get(f"{BYTES}.{capacity:g}")
    if runs is None or sizes is None or len(runs):
        return None
    has, needs = (math.ceil(size) for size in sizes.tolist())
    return f"training the last layer alone takes {needs:,} bytes, and capacity {capacity:g} has {has:,}"


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> Index | Layers:
    """The whole model, and the run of layers that the client trains in this round: one of the longest that fit.

    Devices for which none does, and those that do not take part, hold the model and train nothing.
    """
    del counts
    if at.capacity >= 1:
        return Index.whole(plan)
    runs = at.memory.get(f"{RUNS}.{float(at.capacity):g}")
    if runs is None or not len(runs):
        return Layers.of(plan, 0, 0)
    generator = numpy_generator(at.seed, "layers", at.round, at.number)
    first, stop = runs[int(generator.integers(len(runs)))].tolist()
    return Index.whole(plan) if stop - first == len(layers_of(plan)) else Layers.of(plan, first, stop)


def close(closing: Closing) -> dict[str, Tensor]:
    """The new state; parameters move by the share of those who trained them, unless holders alone are asked for.

    Shares are of whole tensors: unlike with `server.holders_exponent`, rows of classes that a client lacks are counted
    as trained.
    """
    average = closing.average()
    if closing.options["average"] == "holders":
        return average
    plan, everyone = closing.plan, sum(cohort.total_weight for cohort in closing.sums)
    for name in (name for name in average if name in plan.parameters and name not in plan.tied):
        trained = sum(cohort.total_weight for cohort in closing.sums if name in cohort.mean)
        if 0 < trained < everyone:
            average[name] = torch.lerp(closing.state[name], average[name], trained / everyone)
    return average | {name: average[first] for name, first in plan.tied.items() if name in average}


METHOD = Method(
    name="cocofl",
    title="CoCoFL",
    paper="Pfeiffer et al. 2023",
    equation="Algorithm 2",
    choose=choose,
    options={
        "average": choice(
            "all", "holders", help="over all clients of a round, as published, or over those who trained a layer"
        )
    },
    slices=False,
    reads=("memory",),
    freezes=True,
    uploads="the layers it trains",
    init=init,
    close=close,
    unfit=unfit,
)
