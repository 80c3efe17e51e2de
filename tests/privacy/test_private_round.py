"""The private sum of one round (the notes' numbers 37, 38, 39, 41 and 42), and the noise of devices (37, 44)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedwidth
from fedwidth.core.cohort import CohortSum
from fedwidth.core.submodel import state_of
from fedwidth.core.updates import Update
from fedwidth.errors import OptionError
from fedwidth.methods import method
from fedwidth.privacy.noise import skellam_noise, whole_within
from fedwidth.settings import PrivacySettings, SecureSettings, ServerSettings
from fedwidth.training.rounds import Rounds
from fedwidth.training.server.device_noise import DeviceNoise
from fedwidth.training.server.state import Server
from small_runs import same

CAPACITIES = (1.0, 0.5, 0.25)


class Tied(nn.Module):
    """Two layers that are one, a buffer of whole numbers, and one that is never trained."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Linear(width, 3)
        self.last.weight = self.second.weight
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x):
        return self.head(self.last(self.second(self.first(x).relu()).relu()) * self.scale)


def rounds_of(model, *, name="fedrolex", capacities=CAPACITIES, per_class=2.0, **privacy):
    model = model.double()
    plan = fedwidth.trace(model, torch.zeros(2, 4, dtype=torch.float64))
    trained = frozenset(name for name, _ in model.named_parameters())
    rounds = Rounds(
        method(name),
        plan,
        ServerSettings(),
        3,
        privacy=PrivacySettings(**{"noise": 1.0, **privacy}),
        expected=dict.fromkeys(capacities, per_class),
        trained=trained,
    )
    return rounds, Server(state_of(model), round=5)


def updates_of(rounds, server, cohort, sizes):
    """Tasks and sums of clients whose changes have these norms, over the parameters they hold."""
    tasks = rounds.assign(server, cohort)
    sums = []
    for task, size in zip(tasks, sizes, strict=True):
        draws = torch.Generator().manual_seed(task.client)
        sent = dict(task.part.cut(server.state, rounds.plan))
        ties = rounds.plan.tied
        change = {
            n: torch.randn(t.shape, generator=draws, dtype=t.dtype) for n, t in sent.items() if n in rounds.trained
        }
        norm = math.sqrt(sum(float(c.square().sum()) for c in change.values()))
        sub = {n: t + change[n] * (size / norm) if n in change else t for n, t in sent.items()}
        sub |= {n: sub[first] for n, first in ties.items()}
        total = CohortSum(task.index)
        total.add(Update(sub, task.index, client=task.client))
        sums.append(total)
    return tasks, sums


def moved(rounds, server, tasks, sums):
    """The released change of every element times its denominator: the sum of what counted, with its noise."""
    private = rounds.private_round(server)
    new, _ = private.average(tasks, sums)
    return {n: (new[n] - server.state[n]) * private.denominator(n) for n in private._trained}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(CAPACITIES), st.floats(0, 50)), min_size=1, max_size=6),
    st.integers(0, 5),
    st.floats(0.01, 10),
    st.sampled_from(["fedrolex", "fedavg", "heterofl"]),
)
def test_37_removing_any_client_moves_the_sum_by_at_most_the_clip(clients, gone, clip, name):
    rounds, server = rounds_of(Tied(), name=name, clip=clip)
    cohort = [(number, capacity) for number, (capacity, _) in enumerate(clients)]
    tasks, sums = updates_of(rounds, server, cohort, [size for _, size in clients])
    gone %= len(tasks)
    with_all = moved(rounds, server, tasks, sums)
    without = moved(rounds, server, tasks[:gone] + tasks[gone + 1 :], sums[:gone] + sums[gone + 1 :])
    distance = math.sqrt(sum(float((with_all[n] - without[n]).square().sum()) for n in with_all))
    assert distance <= clip * (1 + 1e-9) + 1e-9
    assert distance == pytest.approx(min(clip, clients[gone][1]), abs=1e-9, rel=1e-9)


def test_37_tied_tensors_count_once_and_stay_tied():
    rounds, server = rounds_of(Tied())
    tasks, sums = updates_of(rounds, server, [(0, 1.0)], [0.5])
    new, _ = rounds.private_round(server).average(tasks, sums)
    assert torch.equal(new["second.weight"], new["last.weight"])
    assert "last.weight" not in rounds.private_round(server)._trained


def test_38_denominators_and_what_is_noised_are_equal_whoever_came():
    """Expected are one client of full width, two of half and three of a quarter: 6, 3 or 1 hold an element."""
    rounds, server = rounds_of(Tied())
    rounds = replace(rounds, expected={1.0: 1.0, 0.5: 2.0, 0.25: 3.0})
    private = rounds.private_round(server)
    found = private.denominator("second.weight")
    indexes = {c: rounds.method.select(rounds.plan, capacity=c, round=5, seed=3) for c in CAPACITIES}
    by_hand = torch.zeros(8, 8, dtype=torch.float64)
    for capacity, expected in rounds.expected.items():
        rows, columns = indexes[capacity]["second.weight"]
        by_hand[rows[:, None], columns] += expected
    assert torch.equal(found, by_hand)
    assert sorted(found.unique().tolist()) == [1.0, 3.0, 6.0]
    for cohort in ([], [(0, 0.25)], [(1, 1.0), (2, 0.5)]):
        tasks, sums = updates_of(rounds, server, cohort, [1.0] * len(cohort))
        change = moved(rounds, server, tasks, sums)
        assert all((tensor != 0).all() for tensor in change.values())


def test_38_what_no_enrolled_client_would_hold_keeps_its_bits():
    rounds, server = rounds_of(Tied(), capacities=(0.5, 0.25))
    new, _ = rounds.private_round(server).average(*updates_of(rounds, server, [(0, 0.5)], [1.0]))
    half = rounds.method.select(rounds.plan, capacity=0.5, round=5, seed=3)
    rows, columns = half["second.weight"]
    touched = torch.zeros(8, 8, dtype=torch.bool)
    touched[rows[:, None], columns] = True
    assert torch.equal(new["second.weight"] != server.state["second.weight"], touched)


def test_38_few_expected_holders_are_divided_by_the_least_denominator():
    rounds, server = rounds_of(Tied(), per_class=0.1, min_denominator=0.25)
    assert sorted(rounds.private_round(server).denominator("second.weight").unique().tolist()) == [
        0.25,
        pytest.approx(0.3),
    ]


def test_39_noise_is_within_one_per_cent_on_every_shell_also_one_that_nobody_held():
    """Of full width nobody came. Shells are told apart by how many are expected to hold them."""
    rounds, server = rounds_of(Tied(width=512), noise=1.5, clip=0.4)
    rounds = replace(rounds, expected={1.0: 1.0, 0.5: 2.0, 0.25: 4.0})
    found = {1.0: [], 3.0: [], 7.0: []}
    for number in range(6):
        server = replace(server, round=300 + number)
        private = rounds.private_round(server)
        change = moved(rounds, server, [], [])["second.weight"]
        for expected, values in found.items():
            values.append(change[private.denominator("second.weight") == expected])
    for values in found.values():
        noise = torch.cat(values)
        assert len(noise) > 90_000
        assert float(noise.std()) == pytest.approx(1.5 * 0.4, rel=0.01)
        assert abs(float(noise.mean())) < 0.01


def test_39_noise_differs_from_round_to_round_and_comes_from_the_seed():
    rounds, server = rounds_of(Tied())
    here = rounds.private_round(server).average([], [])[0]
    assert same(here, rounds.private_round(server).average([], [])[0])
    for other in (replace(rounds.private_round(server), seed=4), rounds.private_round(replace(server, round=6))):
        assert not torch.equal(other.average([], [])[0]["first.weight"], here["first.weight"])


@pytest.mark.parametrize("begin", [0.1, 10.0])
@pytest.mark.parametrize("quantile", [0.5, 0.8])
def test_41_the_clip_goes_to_the_quantile_from_both_sides(begin, quantile):
    """Norms are 1/80, 3/80, ... 79/80: a share q of them is below q. Expected are as many clients as come."""
    rounds, server = rounds_of(Tied(width=2), name="fedavg", capacities=(1.0,), per_class=40.0)
    rounds = replace(rounds, privacy=PrivacySettings(noise=1.0, quantile=quantile, clip=begin, clip_rate=0.5))
    sizes = [(number + 0.5) / 40 for number in range(40)]
    tasks, sums = updates_of(rounds, server, [(number, 1.0) for number in range(40)], sizes)
    clips = []
    for number in range(90):
        _, released = rounds.private_round(replace(server, round=number)).average(tasks, sums)
        assert released.clip == (server.clip or begin)
        assert released.clipped == sum(size > released.clip for size in sizes)
        server = replace(server, clip=released.next_clip)
        clips.append(released.next_clip)
    assert np.mean(clips[-40:]) == pytest.approx(quantile, abs=0.06)


def test_41_the_noise_is_that_of_the_clip_that_clipped_and_pays_for_the_bit():
    """z'^-2 = z^-2 - (2 s)^-2 with z = 1.2, s = 40 / 20 = 2: z' = 1.25789..."""
    rounds, server = rounds_of(Tied(width=256), name="fedavg", capacities=(1.0,), per_class=40.0)
    rounds = replace(rounds, privacy=PrivacySettings(noise=1.2, quantile=0.5, clip=1.0))
    server = replace(server, clip=0.3)
    private = rounds.private_round(server)
    assert private.deviation == pytest.approx(0.3 * (1.2**-2 - 4.0**-2) ** -0.5)
    noise = torch.cat([tensor.flatten() for tensor in moved(rounds, server, [], []).values()])
    assert float(noise.std()) == pytest.approx(0.3 * 1.257894, rel=0.01)
    _, released = private.average([], [])
    assert released.clip == 0.3 != released.next_clip


def test_41_bits_that_alone_cost_more_than_all_is_to_are_refused():
    rounds, server = rounds_of(Tied(), name="fedavg", capacities=(1.0,), per_class=4.0, quantile=0.5)
    with pytest.raises(OptionError, match=r"privacy.bits_noise is 0.2 and must be above half of privacy.noise \(0.5\)"):
        _ = rounds.private_round(server).deviation


def test_42_a_zero_update_and_buffers_pass():
    """Nothing is divided by a norm of 0; a buffer that a client changed, whole numbers or not, is not released."""
    rounds, server = rounds_of(Tied())
    tasks, sums = updates_of(rounds, server, [(0, 1.0), (1, 0.5)], [0.0, 0.0])
    changed = dict(sums[0].mean) | {"count": torch.tensor(9.0).double(), "scale": 2 * sums[0].mean["scale"]}
    sums[0] = CohortSum.of(sums[0].index, changed, sums[0].weight, 1)
    new, released = rounds.private_round(server).average(tasks, sums)
    assert released.clipped == 0
    assert released.signal_to_noise == 0
    assert torch.equal(new["count"], server.state["count"])
    assert torch.equal(new["scale"], server.state["scale"])
    assert all(torch.isfinite(tensor.double()).all() for tensor in new.values())
    assert same(new, rounds.private_round(server).average([], [])[0])


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 400),
    st.floats(0.01, 30),
    st.floats(1e-3, 10),
    st.floats(0.25, 4),
    st.floats(0.1, 8),
    st.integers(0, 2**32 - 1),
)
def test_37_words_are_no_longer_than_their_sensitivity_after_rounding(length, size, clip, share, noise, seed):
    devices = DeviceNoise(PrivacySettings(noise=noise, clip=clip), SecureSettings(True, 8, share * clip), 100)
    draws = np.random.default_rng(seed)
    start, change = draws.normal(size=length), draws.normal(size=length)
    change *= size / np.linalg.norm(change)
    words, clipped = devices.clean_words(start + change, start)
    assert np.linalg.norm(words.astype(float)) <= devices.sensitivity
    assert np.abs(words).max() <= devices.point.steps
    if not clipped:  # rounded to the nearest word, and at the clip made shorter by half a word or so
        near = 0.5 if size < 0.99 * clip else 1 + math.sqrt(length)
        assert np.allclose(words / devices.point.scale, change, rtol=0, atol=near / devices.point.scale + 1e-12)


def test_37_rounding_that_would_make_it_longer_is_undone():
    """Nine words of 0.6 have norm 1.8 and round to a norm of 3."""
    words = whole_within(np.full(9, 0.6), 1.8)
    assert np.linalg.norm(words) <= 1.8
    assert whole_within(np.array([3.0, 4.0]), 5.0).tolist() == [3, 4]


def test_44_a_sum_of_exactly_m_has_the_variance_and_one_of_more_has_more():
    """mu = (z S scale)^2. Of 2e5 words the variance is known to 0.32 %: 1.5 % is more than four deviations."""
    devices = DeviceNoise(PrivacySettings(noise=1.3, clip=0.7), SecureSettings(True, 4), 10, seed=1)
    zeros = np.zeros(200_000)
    mu = (1.3 * 0.7 * devices.point.scale) ** 2
    assert devices.variance * 4 == pytest.approx(mu)
    total = np.zeros(zeros.size, np.uint32)
    for client in range(6):
        words, clipped = devices.words(zeros, zeros, client=client, round=3)
        assert not clipped
        total += words
        if client == 3:
            assert float(np.var(total.view(np.int32))) == pytest.approx(mu, rel=0.015)
    assert float(np.var(total.view(np.int32))) == pytest.approx(1.5 * mu, rel=0.015)
    assert abs(float(np.mean(total.view(np.int32)))) < 5 * math.sqrt(1.5 * mu / zeros.size)


def test_44_noise_is_skellams():
    """Its fourth moment, 3 v^2 + v, tells it from Gaussian noise of the same variance v."""
    drawn = skellam_noise(np.random.default_rng(1), 2.0, 400_000).astype(float)
    assert np.mean(drawn**2) == pytest.approx(2.0, rel=0.01)
    assert np.mean(drawn**4) == pytest.approx(14.0, rel=0.03)


@pytest.mark.parametrize(("clients", "noise", "clip", "word_clip"), [(10, 1.0, 1.0, 1.0), (1000, 5.0, 0.1, 1.0)])
def test_44_words_have_room_for_everybody_and_the_noise(clients, noise, clip, word_clip):
    devices = DeviceNoise(PrivacySettings(noise=noise, clip=clip), SecureSettings(True, 8, word_clip), clients)
    deviation = math.sqrt(devices.variance * clients)
    assert clients * devices.point.steps + 8 * deviation < 2**31
    assert math.sqrt(devices.variance * 8) <= 2**20
