"""Coverage: which weights a method ever trains, how evenly, and how soon all of them.

Only the plan is needed: nothing is trained. Counts are kept on the sliced dimensions of each tensor and broadcast over
the others (a 3 x 3 kernel is trained as a whole), so a model with millions of weights takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from fedwidth.analysis.replay import replay
from fedwidth.core.submodel import put, take
from fedwidth.errors import OptionError, whole_number
from fedwidth.methods import Method
from fedwidth.plan.axis import groups_of
from fedwidth.plan.plan import Plan, check_plan

MAX_ROUNDS = 10_000_000
KINDS = {0: "scalars", 1: "vectors", 2: "matrices"}


@dataclass(frozen=True)
class TensorCoverage:
    """How often the weights of one tensor were trained."""

    name: str
    shape: tuple[int, ...]
    counts: Tensor
    """How often each weight was trained, on the dimensions that can be sliced (size 1 elsewhere)."""

    @property
    def share(self) -> float:
        """The share of its weights that were trained at least once."""
        return float((self.counts > 0).double().mean())

    @property
    def weights(self) -> int:
        """The number of its weights."""
        return math.prod(self.shape)

    @property
    def kind(self) -> str:
        """What kind of tensor it is: scalars, vectors, matrices or convolutions."""
        return KINDS.get(len(self.shape), "convolutions")


@dataclass(frozen=True)
class Coverage:
    """What a method reached on a model after a number of rounds."""

    method: str
    capacities: tuple[float, ...]
    rounds: int
    tensors: tuple[TensorCoverage, ...]
    share_by_round: tuple[float, ...]
    """Share of all weights trained at least once, after each round."""

    def share(self, kind: str | None = None) -> float:
        """The share of weights that were trained at least once, of one kind of tensor or overall."""
        chosen = [t for t in self.tensors if kind in (None, t.kind)]
        return sum(t.share * t.weights for t in chosen) / sum(t.weights for t in chosen)

    @property
    def kinds(self) -> list[str]:
        """The kinds of tensors in the model."""
        return sorted({t.kind for t in self.tensors})

    @property
    def evenness(self) -> float:
        """Jain's index over all weights, (mean count)^2 / mean(count^2): 1 when all were trained equally often."""
        total = sum(t.weights for t in self.tensors)
        mean = sum(float(t.counts.double().mean()) * t.weights for t in self.tensors) / total
        square = sum(float(t.counts.double().square().mean()) * t.weights for t in self.tensors) / total
        return mean**2 / square if square else 0.0

    @property
    def full_after(self) -> int | None:
        """After how many rounds every weight had been trained; None where that never was."""
        return next((number + 1 for number, share in enumerate(self.share_by_round) if share == 1.0), None)


def measure_coverage(
    plan: Plan, method: Method, capacities: Sequence[float], rounds: int, *, seed: int = 0
) -> Coverage:
    """Let clients of these capacities take part in every round, and count how often each weight would be trained."""
    check_plan(plan)
    rounds = whole_number("rounds", rounds, least=1)
    if rounds > MAX_ROUNDS:
        raise OptionError(f"rounds must be at most {MAX_ROUNDS:,}, as they are counted one by one, not {rounds}")
    if not capacities:
        raise OptionError("coverage needs the capacity of at least one client")
    names = [n for n in plan.axes if n in plan.parameters and n not in plan.tied and n not in plan.untrained]
    if not names:
        raise OptionError("the model has no parameters, so there is nothing to cover")
    shapes = {n: [a.size if groups_of(a) else 1 for a in plan.axes[n]] for n in names}
    counts = {n: torch.zeros(shapes[n], dtype=torch.int32) for n in names}
    weights = {n: math.prod(plan.shapes[n]) // math.prod(shapes[n]) for n in names}  # that one count stands for
    missing = {n: counts[n].numel() for n in names}
    total = sum(weights[n] * missing[n] for n in names)
    shares = []
    for tasks in replay(method, plan, repeat(list(enumerate(capacities)), rounds), seed):
        for task in tasks:
            for name in names:
                held = take(counts[name], task.index, name) + 1
                put(counts[name], held, task.index, name)
        for name in (n for n in names if missing[n]):
            missing[name] = counts[name].numel() - int(counts[name].count_nonzero())
        shares.append(1 - sum(weights[n] * missing[n] for n in names) / total)
    tensors = tuple(TensorCoverage(n, plan.shapes[n], counts[n]) for n in names)
    return Coverage(method.name, tuple(float(c) for c in capacities), rounds, tensors, tuple(shares))


def random_rounds_exact(indices: int) -> float:
    """Lemma 1 (A.1): expected rounds until each of I indices, one drawn a round, came up: I (1/1 + … + 1/I).

    >>> random_rounds_exact(2)
    3.0
    """
    return indices * math.fsum(1 / i for i in range(1, whole_number("indices", indices, least=1) + 1))


def random_rounds_integral(indices: int, times: int = 1) -> float:
    """Lemma 2 (A.1): the same for at least m times each, I * integral of 1 - (1 - S_m(t) e^-t)^I over t >= 0,
    with S_m(t) = sum of t^l / l! for l < m (Eq. 8).

    >>> round(random_rounds_integral(2), 9)
    3.0
    """
    indices, times = whole_number("indices", indices, least=1), whole_number("times", times, least=1)
    # The integrand falls from 1 to 0 around log I + (m-1) log log I and is below 1e-16 well before the upper end.
    upper = 60.0 + 2 * math.log(indices) + 4.0 * times
    nodes, node_weights = np.polynomial.legendre.leggauss(64)
    edges = np.linspace(0.0, upper, 257)
    half = (edges[1:] - edges[:-1])[:, None] / 2
    t = (edges[:-1, None] + half) + half * nodes
    log_terms = np.stack([power * np.log(t) - math.lgamma(power + 1) - t for power in range(times)])
    tail = np.exp(np.logaddexp.reduce(log_terms, axis=0))
    return float(indices * np.sum(-np.expm1(indices * np.log1p(-np.minimum(tail, 1 - 1e-16))) * half * node_weights))


def random_rounds_order(indices: int, times: int = 1) -> float:
    """What both lemmas grow like: I log I + I (m - 1) log log I (Newman, cited in A.1); for I from 2 on."""
    logarithm = math.log(whole_number("indices", indices, least=2))
    return indices * logarithm + indices * (whole_number("times", times, least=1) - 1) * math.log(logarithm)


def rolling_rounds(indices: int, times: int = 1) -> int:
    """FedRolex chooses each of I indices m times in exactly m I rounds (section 3.3.1)."""
    return whole_number("times", times, least=1) * whole_number("indices", indices, least=1)
