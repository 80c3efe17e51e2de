"""PriSM: worked examples of its draw and of its averages, by hand."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.core.factored.decomposition import CHANNELS
from fedwidth.core.factored.factors import Factors
from fedwidth.methods import Closing, Moment, Task
from fedwidth.methods.prism import draw, log_odds


def moment(**options):
    values = fedwidth.method("prism", **options).values
    return Moment(capacity=0.5, round=0, client=0, clients=1, seed=0, options=values)


def test_odds_are_powers_of_singular_values():
    """sigma = (3, 2, 1), kappa = 2: p = (9, 4, 1) / 14."""
    odds = np.exp(log_odds(np.array([3.0, 2.0, 1.0]), "power", 2.0))
    assert odds / odds.sum() == pytest.approx(np.array([9, 4, 1]) / 14)


def test_two_of_three_are_drawn_with_the_exact_probabilities():
    """Drawn one after the other: 0.949451, 0.821978, 0.228571."""
    p = np.array([9, 4, 1]) / 14
    exact = np.zeros(3)
    for one, two in itertools.permutations(range(3), 2):
        exact[[one, two]] += p[one] * p[two] / (1 - p[one])
    assert exact == pytest.approx([0.949451, 0.821978, 0.228571], abs=1e-6)
    generator, at, times = np.random.default_rng(0), moment(kappa=2.0), 20_000
    counts = np.zeros(3)
    for _ in range(times):
        held = draw(np.array([3.0, 2.0, 1.0]), 2, generator, at)
        assert held == tuple(sorted(set(held)))
        counts[list(held)] += 1
    assert counts / times == pytest.approx(exact, abs=0.01)


def test_the_first_rounds_may_take_the_top_components():
    assert draw(np.ones(5), 2, np.random.default_rng(0), moment(warmup=1)) == (0, 1)
    assert draw(np.ones(5), 2, np.random.default_rng(0), moment(draw="top")) == (0, 1)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))


PLAN = fedwidth.trace(net(), torch.randn(2, 3))
PRISM = fedwidth.method("prism")


def closed(state, parts, change=lambda sub: sub):
    tasks, sums = [], []
    for place, part in enumerate(parts):
        tasks.append(Task(place, 0.5, part, place))
        sums.append(part.accumulator())
        sums[-1].add(fedwidth.Update(change(part.cut(state, PLAN)), part, 1.0))
    return PRISM.finish(Closing(state, sums, PLAN, tasks=tasks, options=PRISM.values))


def test_untrained_clients_change_nothing():
    state = fedwidth.state_of(net())
    parts = [PRISM.select(PLAN, capacity=0.5, client=c, clients=3, state=state) for c in range(3)]
    assert len({part.key for part in parts}) > 1, "every client draws for itself"
    assert all(len(part.components["2.weight"]) == 3 for part in parts)
    new = closed(state, parts)
    for name, tensor in state.items():
        torch.testing.assert_close(new[name], tensor)


def test_factors_are_averaged_and_components_nobody_held_stay():
    """Two clients return u = v = 2 and u = v = 1 for one component: the product of means 2.25."""
    matrix = torch.diag(torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.5]))
    state = fedwidth.state_of(net()) | {"2.weight": matrix}
    values = iter((2.0, 1.0))

    def change(sub):
        value = next(values)
        unit = torch.zeros(1, 6, 1)
        unit[0, 1] = value
        return sub | {"2.up": unit, "2.down": unit.mT.clone()}

    part = Factors(PLAN, CHANNELS, {"2.weight": (1,)}, keeps_factors=True)
    new = closed(state, [part, part], change)["2.weight"]
    expected = matrix.clone()
    expected[1, 1] = 2.25
    torch.testing.assert_close(new, expected)
