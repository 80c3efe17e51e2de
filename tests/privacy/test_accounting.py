"""What noise costs (the notes' numbers 36, 40 and 45): published values, exact formulas, and what is installed."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwidth.errors import OptionError
from fedwidth.privacy import accounting
from fedwidth.privacy.accounting import (
    FINE_UP_TO,
    MAX_EPSILON,
    gaussian_accountant,
    noise_for,
    skellam_accountant,
)
from fedwidth.privacy.gaussian import gaussian_delta, gaussian_epsilon
from fedwidth.privacy.renyi import renyi_epsilon, sampled_gaussian, skellam

ROOT = Path(__file__).parents[2]
needs_package = pytest.mark.skipif(
    not accounting.installed(), reason="dp-accounting is not installed: pip install 'fedwidth[privacy]'"
)

KNOWN = [
    # rate, noise, rounds, delta, by Rényi divergences, by privacy loss distributions
    (0.01, 1.1, 1000, 1e-5, 1.711770, 1.515370),
    (0.01, 1.0, 1000, 1e-5, 2.101367, 1.828244),
    (0.1, 1.0, 100, 1e-5, 7.903850, 7.046603),
    (0.1, 2.0, 500, 1e-4, 5.321975, 4.821280),
    (1.0, 1.0, 1, 1e-5, 4.728507, 4.377178),
    (1.0, 4.0, 10, 1e-5, 3.617100, 3.341410),
]


@needs_package
@pytest.mark.parametrize(("rate", "noise", "rounds", "delta", "rdp", "pld"), KNOWN)
def test_36_known_values(rate, noise, rounds, delta, rdp, pld):
    def found(kind):
        return gaussian_accountant(kind, noise=noise, rate=rate, delta=delta).epsilon(rounds)

    assert found("rdp") == pytest.approx(rdp, abs=1e-5)
    assert found("pld") == pytest.approx(pld, abs=1e-3)


@needs_package
def test_36_the_first_value_lies_within_what_another_package_gives():
    """prv-accountant 0.2.0 says 1.50526 to 1.52547."""
    accountant = gaussian_accountant("pld", noise=1.1, rate=0.01, delta=1e-5)
    assert 1.50526 <= accountant.epsilon(1000) <= 1.52547
    assert accountant.version.startswith("0.6")
    assert "privacy loss distributions" in accountant.name


@pytest.mark.parametrize(("rate", "noise", "rounds", "delta", "rdp", "pld"), KNOWN)
def test_36_without_the_package_a_bound_serves_and_is_named(monkeypatch, rate, noise, rounds, delta, rdp, pld):
    """Whole orders are some of all orders, so the bound is never below Rényi's, and not far above it."""
    monkeypatch.setattr(accounting, "installed", lambda: "")
    for kind in ("pld", "rdp"):
        accountant = gaussian_accountant(kind, noise=noise, rate=rate, delta=delta)
        if rate == 1.0 and kind == "pld":
            assert accountant.name == "the exact formula"
            assert accountant.epsilon(rounds) == pytest.approx(pld, abs=2e-6)
        else:
            assert accountant.name == "Rényi divergences of whole orders (dp-accounting is not installed)"
            assert rdp - 1e-6 <= accountant.epsilon(rounds) <= 1.02 * rdp


def test_36_the_fallback_gives_the_value_of_the_notes():
    assert renyi_epsilon(sampled_gaussian(0.01, 1.1), 1000, 1e-5) == pytest.approx(1.7253, abs=5e-5)


@settings(deadline=None)
@given(st.floats(0.3, 20), st.integers(1, 5000), st.floats(1e-9, 0.1))
def test_the_exact_formula_gives_back_delta(noise, rounds, delta):
    epsilon = gaussian_epsilon(noise, rounds, delta)
    mu = math.sqrt(rounds) / noise
    if epsilon > 0:
        assert gaussian_delta(mu, epsilon) == pytest.approx(delta, rel=1e-6)
    else:
        assert gaussian_delta(mu, 0.0) <= delta


@settings(deadline=None)
@given(st.floats(0.3, 10), st.integers(1, 500), st.sampled_from([1e-6, 1e-5, 1e-3]))
def test_no_bound_is_below_the_exact_formula(noise, rounds, delta):
    exact = gaussian_epsilon(noise, rounds, delta)
    assert renyi_epsilon(sampled_gaussian(1.0, noise), rounds, delta) >= exact
    assert renyi_epsilon(sampled_gaussian(0.1, noise), rounds, delta) <= renyi_epsilon(
        sampled_gaussian(1.0, noise), rounds, delta
    )


def test_skellam_noise_on_many_steps_costs_what_gaussian_noise_does_and_on_few_more():
    """Order 2, by hand: sensitivity 4, noise 2, so mu = 64; 9 words, so the first norm is min(3 * 4, 16) = 12.

    2 * 16 / 128 + min((3 * 16 + 72) / (4 * 4096), 36 / 128) = 0.25 + 0.00732421875
    """
    assert skellam(2.0, 4.0, 9)(2) == pytest.approx(0.25732421875, rel=1e-12)
    gaussian = renyi_epsilon(sampled_gaussian(1.0, 1.5), 20, 1e-5)
    fine = skellam_accountant(noise=1.5, sensitivity=1e6, length=10**7, delta=1e-5)
    coarse = skellam_accountant(noise=1.5, sensitivity=5.0, length=10**7, delta=1e-5)
    assert gaussian <= fine.epsilon(20) <= 1.001 * gaussian
    assert coarse.epsilon(20) > 1.01 * gaussian
    assert fine.name == "Rényi divergences of whole orders for Skellam noise"


@pytest.mark.parametrize("kind", ["pld", "rdp"])
@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_40_epsilon_never_falls_and_tells_how_many_rounds_a_budget_affords(kind, rate):
    accountant = gaussian_accountant(kind, noise=2.0, rate=rate, delta=1e-5)
    found = [accountant.epsilon(rounds) for rounds in range(12)]
    assert found[0] == 0.0 < found[1]
    assert found == sorted(found)
    assert accountant.affords(found[7], 100) == 7
    assert accountant.affords(found[7] - 1e-9, 100) == 6
    assert accountant.affords(found[7], 3) == 3
    assert accountant.affords(found[1] / 2, 100) == 0


@needs_package
@pytest.mark.parametrize(("noise", "rounds", "above"), [(1.0, 10**9, FINE_UP_TO), (0.05, 10**7, MAX_EPSILON)])
def test_what_promises_nothing_takes_no_memory(noise, rounds, above):
    accountant = gaussian_accountant("pld", noise=noise, rate=0.01, delta=1e-5)
    found = accountant.epsilon(rounds)
    assert found == renyi_epsilon(sampled_gaussian(0.01, noise), rounds, 1e-5) > above
    assert accountant.epsilon(rounds + 1) >= found
    assert accountant.epsilon(10) < FINE_UP_TO


@needs_package
def test_a_delta_that_allows_everything_costs_nothing():
    assert gaussian_accountant("pld", noise=1.1, rate=0.5, delta=0.5).epsilon(1) == 0


@needs_package
def test_large_losses_are_told_apart_less_finely_and_come_to_the_same():
    """Little noise for few clients: the bound by whole orders is 156 times too high."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    once = from_gaussian_mechanism(0.2, sampling_prob=0.01, value_discretization_interval=0.002)
    exact = once.self_compose(20_000).get_epsilon_for_delta(1e-5)
    found = gaussian_accountant("pld", noise=0.2, rate=0.01, delta=1e-5).epsilon(20_000)
    assert renyi_epsilon(sampled_gaussian(0.01, 0.2), 20_000, 1e-5) > 100 * exact
    assert exact <= found < 1.001 * exact


def test_noise_is_found_by_its_epsilon():
    """Without amplification it can be tried: the noise suffices, and one in a hundred less does not."""
    noise = noise_for(3.0, rounds=10, rate=1.0, delta=1e-5, kind="pld")
    assert gaussian_epsilon(noise, 10, 1e-5) <= 3.0 < gaussian_epsilon(0.99 * noise, 10, 1e-5)


@needs_package
def test_noise_for_epsilon_8_is_that_of_the_notes():
    assert noise_for(8.0, rounds=1000, rate=0.01, delta=1e-5, kind="rdp") == pytest.approx(0.59, abs=0.03)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise": 0.0}, "noise must be a number from 0.05 on, not 0"),
        ({"noise": math.nan}, "noise must be"),
        ({"rate": 0.0}, "rate must be a probability above 0 and at most 1, not 0"),
        ({"rate": 1.5}, "rate must be"),
        ({"delta": 0.0}, "delta must be a probability above 0 and below 1, not 0"),
        ({"delta": 1.0}, "delta must be"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(OptionError, match=message):
        gaussian_accountant("pld", **{"noise": 1.0, "rate": 0.1, "delta": 1e-5, **changes})
    with pytest.raises(OptionError, match="an accountant is one of pld, rdp, not 'prv'"):
        gaussian_accountant("prv", noise=1.0, rate=0.1, delta=1e-5)


def test_45_the_extra_never_takes_a_version_without_an_accountant(monkeypatch):
    """pip would take 0.0.2 of 2021 where newer ones do not resolve; the lower bound makes that an error."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = project["optional-dependencies"]["privacy"]
    assert re.fullmatch(r"dp-accounting>=0\.(\d+),<0\.\d+", requirement)[1] >= "6"
    for extra, requirements in project["optional-dependencies"].items():
        assert extra == "privacy" or not any("dp-accounting" in each for each in requirements)
    monkeypatch.setattr(accounting, "version", lambda _: "0.0.2")
    assert accounting.installed() == ""
    monkeypatch.setattr(accounting, "version", lambda _: "0.6.0")
    assert accounting.installed() == "0.6.0"
