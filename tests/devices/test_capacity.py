"""Mixes of capacities: what their texts mean, exact shares, and draws that depend on nothing but their arguments."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwidth.devices.capacity import Capacities, parse_capacity, sample_clients
from fedwidth.errors import CapacityError, OptionError

FIVE = (1.0, 0.5, 0.25, 0.125, 0.0625)


@pytest.mark.parametrize(
    ("text", "values", "weights"),
    [
        ("a1-b1-c1-d1-e1", FIVE, (1, 1, 1, 1, 1)),
        ("a0-e1", (1.0, 0.0625), (0, 1)),
        ("a0.5-c2", (1.0, 0.25), (0.5, 2)),
        ("1:1 1/16:9", (1.0, 0.0625), (1, 9)),
        ("0.3:2", (0.3,), (2,)),
        ("1/4", (0.25,), (1,)),
        ("1, 1/2:3", (1.0, 0.5), (1, 3)),
        ("household", FIVE, (6, 10, 11, 18, 55)),
        ("rho:0", (1.0, 0.0625), (0, 1)),
        ("rho:0.25", (1.0, 0.0625), (0.25, 0.75)),
    ],
)
def test_texts(text, values, weights):
    assert Capacities.parse(text) == Capacities(values, weights)


@pytest.mark.parametrize(
    "text",
    [
        " ",
        "a",
        "f1",
        "a1-",
        "a1--b1",
        "a1b1",
        "a-1",
        "A1",
        "a²",
        "0:1",
        "2:1",
        "1/0:1",
        "1:-1",
        "1:x",
        "1::2",
        "nan:1",
        "1e999:1",
        "1:1e99",
        "a0",
        "a0-b0",
        "1:1 1:2",
        "1/2:1 0.5:1",
        "a1-a2",
        "rho:1.1",
        "rho:",
        "rho:-1",
        "homes",
        "",
    ],
)
def test_nonsense_is_refused_by_name(text):
    with pytest.raises(OptionError) as caught:
        Capacities.parse(text)
    assert f"'{text}'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["0", "1.5", "-1", "x", "1/2/3", "", "inf"])
def test_one_capacity_lies_above_zero_and_at_most_at_one(text):
    with pytest.raises(CapacityError):
        parse_capacity(text)


MIXES = st.lists(st.integers(0, 9), min_size=5, max_size=5).filter(any).map(lambda w: Capacities(FIVE, tuple(w)))


@settings(deadline=None, max_examples=50)
@given(MIXES, st.integers(1, 300))
def test_shares_add_up_and_miss_their_quota_by_less_than_one(mix, clients):
    shares = mix.shares(clients)
    assert sum(shares) == clients
    for share, weight in zip(shares, mix.weights, strict=True):
        assert abs(share - clients * weight / sum(mix.weights)) < 1
        assert weight or not share


def test_household_shares_of_a_hundred_are_the_percentages():
    assert Capacities.parse("household").shares(100) == (6, 10, 11, 18, 55)
    assert Capacities.parse("rho:0.3").shares(100) == (30, 70)


def test_fixed_capacities_are_the_same_in_every_round_and_differ_by_seed():
    mix = Capacities.parse("a1-b1-c1-d1-e1")
    assigned = mix.assign(100, 7)
    assert sorted(assigned, reverse=True) == [c for c in FIVE for _ in range(20)]
    for round in (0, 5):
        each = [mix.of_client(client, 100, round=round, seed=7, dynamic=False) for client in range(100)]
        assert each == assigned.tolist()
    assert mix.assign(100, 8).tolist() != assigned.tolist()
    assert assigned.tolist() != sorted(assigned, reverse=True), "clients with neighbouring data must not share a size"


def test_dynamic_capacities_change_with_the_round_and_follow_the_weights():
    mix = Capacities.parse("a0-b1-e3")
    drawn = np.array([[mix.of_client(c, 50, round=r, seed=1, dynamic=True) for c in range(50)] for r in range(40)])
    assert set(np.unique(drawn)) == {0.5, 0.0625}, "nobody has the full width"
    share = (drawn == 0.5).mean()
    assert abs(share - 0.25) < 4 * math.sqrt(0.25 * 0.75 / drawn.size)
    assert (drawn[0] != drawn[1]).any()
    again = [mix.of_client(c, 10**6, round=3, seed=1, dynamic=True) for c in range(50)]
    assert again == drawn[3].tolist(), "a draw depends on (seed, round, client) alone"


def test_a_client_that_does_not_exist_has_no_capacity():
    with pytest.raises(OptionError, match="client 3 is not one of 3"):
        Capacities.parse("a1").of_client(3, 3, round=0, seed=0, dynamic=True)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 200), st.data())
def test_a_cohort_has_different_clients_and_is_a_pure_function(clients, data):
    per_round = data.draw(st.integers(1, clients))
    cohort = sample_clients(clients, per_round, round=2, seed=3)
    assert len(set(cohort)) == per_round
    assert all(0 <= client < clients for client in cohort)
    assert cohort == sample_clients(clients, per_round, round=2, seed=3)


def test_cohorts_are_uniform():
    rounds = 3000
    counts = np.zeros(10)
    for round in range(rounds):
        counts[sample_clients(10, 3, round=round, seed=0)] += 1
    expected = rounds * 0.3
    assert np.abs(counts - expected).max() < 4 * math.sqrt(rounds * 0.3 * 0.7)


def test_a_cohort_out_of_a_million_needs_no_list_of_a_million():
    sample_clients(10**6, 200, round=0, seed=0)
    tracemalloc.start()
    cohort = sample_clients(10**6, 200, round=1, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(set(cohort)) == 200
    assert peak < 200_000


@pytest.mark.parametrize(("clients", "per_round"), [(3, 4), (3, 0), (0, 0)])
def test_impossible_cohorts_are_refused(clients, per_round):
    with pytest.raises(OptionError):
        sample_clients(clients, per_round, round=0, seed=0)


def test_a_list_of_numbers_and_fractions():
    assert Capacities.parse([1, "1/2", 0.25]) == Capacities.parse([1.0, 0.5, 0.25])


@pytest.mark.parametrize("wrong", ["1/0", "half", 2, True, None])
def test_a_list_with_what_is_no_capacity(wrong):
    with pytest.raises(OptionError, match="in the list of clients' capacities a capacity "):
        Capacities.parse([1, wrong])
