import math
from dataclasses import replace

import numpy as np
import pytest

from fedwidth.analysis import coverage
from fedwidth.errors import OptionError
from fedwidth.methods import method
from fedwidth.plan.axis import Fixed, Units
from hand_plans import mlp_plan, plan_of


def square_plan(size):
    return plan_of({"w": (Units("out", size), Units("in", size), Fixed(3, "kernel"))})


def test_heterofl_trains_the_same_corner_for_ever():
    measured = coverage.measure_coverage(square_plan(8), method("heterofl"), [0.25], 20)
    assert measured.share() == (2 / 8) ** 2
    assert measured.full_after is None


def test_fedrolex_stays_on_the_diagonal_band():
    # Windows of n = 2 of K = 8 in lock-step hold pairs whose offset is -1, 0 or +1: 3 K of K^2 weights.
    measured = coverage.measure_coverage(square_plan(8), method("fedrolex"), [0.25], 8)
    assert measured.share() == 3 * 8 / 64
    later = coverage.measure_coverage(square_plan(8), method("fedrolex"), [0.25], 100)
    assert later.share() == measured.share()


@pytest.mark.parametrize("n", [2, 4, 8])
def test_fedbrb_covers_everything_in_n_squared_rounds_and_evenly(n):
    measured = coverage.measure_coverage(square_plan(16), method("fedbrb"), [1 / n], n * n)
    assert measured.full_after == n * n
    assert measured.evenness == 1.0


def test_full_capacity_covers_everything_at_once():
    for name in ("fedavg", "heterofl", "fedrolex", "feddropout", "fedbrb"):
        assert coverage.measure_coverage(mlp_plan(), method(name), [1.0], 1).full_after == 1


def test_evenness_by_hand():
    # One vector of 4, prefix of 2, 3 rounds: counts 3, 3, 0, 0. Jain: (1.5)^2 / (9 + 9)/4 = 0.5.
    plan = plan_of({"v": (Units("g", 4),)})
    assert coverage.measure_coverage(plan, method("heterofl"), [0.5], 3).evenness == 0.5


def test_lemma_1_sum_and_integral_agree_and_match_simulation():
    for indices in (1, 2, 5, 64, 512):
        exact = coverage.random_rounds_exact(indices)
        assert coverage.random_rounds_integral(indices) == pytest.approx(exact, rel=1e-9)
    generator = np.random.default_rng(0)
    waits = []
    for _ in range(3000):
        missing, rounds = set(range(8)), 0
        while missing:
            missing.discard(int(generator.integers(8)))
            rounds += 1
        waits.append(rounds)
    assert np.mean(waits) == pytest.approx(coverage.random_rounds_exact(8), rel=0.03)


def test_lemma_2_by_hand_and_its_order():
    # I = 1: m rounds. I = 2, m = 2 by the classic double dixie cup: 11/2.
    assert coverage.random_rounds_integral(1, 3) == pytest.approx(3)
    assert coverage.random_rounds_integral(2, 2) == pytest.approx(5.5)
    ratios = [coverage.random_rounds_integral(10**k, 3) / coverage.random_rounds_order(10**k, 3) for k in (2, 4, 6, 12)]
    assert abs(ratios[-1] - 1) < abs(ratios[0] - 1)
    assert coverage.random_rounds_order(100) == pytest.approx(100 * math.log(100))
    assert coverage.rolling_rounds(512, 2) == 1024


def test_rounds_must_be_positive():
    with pytest.raises(OptionError, match="rounds must be a whole number from 1 on"):
        coverage.measure_coverage(mlp_plan(), method("fedavg"), [1.0], 0)


def test_coverage_needs_clients_and_weights():
    with pytest.raises(OptionError, match="the capacity of at least one client"):
        coverage.measure_coverage(mlp_plan(), method("fedavg"), [], 3)
    with pytest.raises(OptionError, match="rounds must be a whole number from 1 on, not 2.5"):
        coverage.measure_coverage(mlp_plan(), method("fedavg"), [1.0], 2.5)
    with pytest.raises(OptionError, match="no parameters"):
        coverage.measure_coverage(replace(mlp_plan(), parameters=frozenset()), method("fedavg"), [1.0], 1)


@pytest.mark.parametrize(
    "theory", [coverage.random_rounds_exact, coverage.random_rounds_integral, coverage.rolling_rounds]
)
def test_theory_is_for_one_index_or_more(theory):
    assert theory(1) == pytest.approx(1)
    for indices in (0, -3, 2.5):
        with pytest.raises(OptionError, match="indices must be a whole number from 1 on"):
            theory(indices)
    with pytest.raises(OptionError, match="indices must be a whole number from 2 on"):
        coverage.random_rounds_order(1)
