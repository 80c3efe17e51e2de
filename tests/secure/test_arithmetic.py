"""Words, shells, rules and shares, without any key (the notes' numbers 1 to 4, 6, 7 and 34)."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwidth.errors import OptionError, SecureError, UpdateError
from fedwidth.secure.fixed_point import LARGEST, FixedPoint
from fedwidth.secure.rules import open_segments, threshold
from fedwidth.secure.segments import Words, cohort, shells
from fedwidth.secure.sharing import PRIME, SHARE_BYTES, combine, split
from fedwidth.secure.simulate import Sums


def test_2_a_mean_is_within_the_bound():
    """Three clients of weights 1, 2 and 4: the exact mean in fractions, the bound n_h / (2 scale W) worked by hand."""
    point = FixedPoint(clients=3, clip=0.5, max_weight=4.0)
    assert point.steps == (2**31 - 1) // 3 - 1 == 715827881
    assert point.scale == 715827881 / 2
    changes = np.random.default_rng(1).uniform(-0.5, 0.5, (3, 1000))
    weights = (1.0, 2.0, 4.0)
    total = sum(
        (point.words(own, np.zeros(1000), w)[0] for own, w in zip(changes, weights, strict=True)),
        np.zeros(1000, np.uint32),
    )
    exact = [sum(Fraction(w) * Fraction(x) for w, x in zip(weights, column, strict=True)) / 7 for column in changes.T]
    errors = [abs(float(Fraction(float(found)) - e)) for found, e in zip(point.mean(total, 7.0), exact, strict=True)]
    assert max(errors) <= point.error(3, 7.0) == 3 / (2 * 715827881 / 2 * 7)
    assert max(errors) > point.error(3, 7.0) / 10  # the bound is no empty one


@given(
    clients=st.integers(1, 1000),
    clip=st.floats(1e-3, 1e3),
    weight=st.floats(1e-3, 1e6),
    signs=st.lists(st.sampled_from([-1, 1]), min_size=1, max_size=5),
)
@settings(max_examples=200, deadline=None)
def test_3_the_largest_sum_does_not_wrap(clients, clip, weight, signs):
    point = FixedPoint(clients, clip, weight)
    extreme = np.array([sign * value for sign in signs for value in (clip, 1e30, clip * (1 - 1e-16))])
    words, clipped = point.words(extreme, np.zeros(len(extreme)), weight)
    assert clipped == len(signs)
    total = np.zeros_like(words)
    for _ in range(clients):
        total += words
    expected = words.view(np.int32).astype(np.int64) * clients
    assert (np.abs(expected) <= LARGEST).all()
    assert (total.view(np.int32) == expected).all()


def test_4_no_change_is_no_change():
    point = FixedPoint(7)
    start = np.array([1e-30, 3.7, -1e30, 0.1, 0.0], np.float32)
    words, _ = point.words(start, start)
    assert not words.any()
    assert (point.mean(words, 7.0) == 0).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_6_what_is_not_finite_is_refused_on_the_device(value):
    with pytest.raises(UpdateError, match="not finite"):
        FixedPoint(3).words(np.array([0.0, value], np.float32), np.zeros(2, np.float32))


def test_a_fixed_point_refuses_what_it_cannot_add():
    with pytest.raises(OptionError, match="1 to 65535 clients, not of 0"):
        FixedPoint(0)
    with pytest.raises(OptionError, match="finite numbers above 0"):
        FixedPoint(2, clip=0.0)
    with pytest.raises(UpdateError, match="above 0 and at most 1, not 2"):
        FixedPoint(2).words(np.zeros(1), np.zeros(1), 2.0)


def test_7_shells_of_a_matrix_by_hand():
    """A 3 x 3 matrix with widths {1}, {0, 1} and all, and its bias: the shells as one would draw them.

    levels of rows and columns 1 0 2        shell of each element    1 1 2
                                                                     1 0 2
                                                                     2 2 2
    """
    levels = np.array([1, 0, 2], np.uint8)
    found = shells([(levels, levels), (levels,)], classes=3)
    assert found.lengths == (2, 4, 6)
    assert found.order.tolist() == [4, 10, 0, 1, 3, 9, 2, 5, 6, 7, 8, 11]
    middle = shells([(levels[:2], levels[:2]), (levels[:2],)], classes=2)
    full = np.arange(12) * 10
    assert middle.arrange(np.array([0, 10, 30, 40, 90, 100])).tolist() == found.arrange(full)[:6].tolist()


def test_a_cohort_is_one_segment():
    words = cohort(3, 5)
    assert words.segments == (3,)
    assert words.restore(words.arrange(np.arange(5))).tolist() == [0, 1, 2, 3, 4]
    assert Words((0, 2), (1, 2)).split(np.arange(3))[2].tolist() == [1, 2]


def test_sums_open_what_the_rules_say():
    held = {client: (0, 1) if client < 3 else (0,) for client in range(6)}
    sums = Sums(held, min_clients=3)
    for client in (5, 1, 3, 0, 4):  # in any order, one is missing
        sums.add(client, {segment: np.array([2**31 + client], np.uint32) for segment in held[client]})
    assert {s: total.tolist() for s, total in sums.opened().items()} == {0: [(5 * 2**31 + 13) % 2**32]}
    few = Sums(held, min_clients=2)
    for client in range(4):  # four of six, and five are needed
        few.add(client, {segment: np.zeros(1, np.uint32) for segment in held[client]})
    assert threshold(6) == 5
    assert few.opened() == {}


def test_two_sets_of_answers_overlap_by_more_than_a_third():
    """With c of n clients on its side, a server that wants both kinds of shares needs 2 (T - c) <= n - c answers."""
    for n in range(2, 400):
        for c in range((n + 2) // 3):
            assert 2 * (threshold(n) - c) > n - c


def test_every_class_must_have_enough_where_that_is_asked():
    held = {1: (0,), 2: (0,), 3: (0, 1), 4: (0, 1), 5: (0, 1, 2)}
    assert open_segments(held, held, 2) == [0, 1]
    assert open_segments(held, held, 2, every_class=True) == []
    assert open_segments(held, [1, 2, 3, 4], 2, every_class=True) == [0, 1]


def test_34_any_enough_shares_give_the_secret():
    secret = bytes(range(16))
    shares = split(secret, range(1, 7), needed=4)
    assert all(len(share) == SHARE_BYTES for share in shares.values())
    for size in (4, 5, 6):
        for points in combinations(range(1, 7), size):
            assert combine({point: shares[point] for point in points}) == secret


def test_34_fewer_shares_fit_every_secret():
    """Three of four needed shares: for any secret there is a fourth share that leads to it, by Lagrange by hand."""
    shares = split(bytes(16), [1, 2, 3, 4], needed=4)
    for wanted in (1, 2**128 - 1):
        # f(0) = 4 f(1) - 6 f(2) + 4 f(3) - f(4)
        ones = [int.from_bytes(shares[point], "little") for point in (1, 2, 3)]
        fourth = (4 * ones[0] - 6 * ones[1] + 4 * ones[2] - wanted) % PRIME
        forged = {**{p: shares[p] for p in (1, 2, 3)}, 4: fourth.to_bytes(SHARE_BYTES, "little")}
        assert int.from_bytes(combine(forged), "little") == wanted


def test_34_shares_are_uniform_whatever_the_secret():
    """Of secrets 0 and 2^128 - 1 alike, half of all shares lie in the lower half of the field."""
    for secret in (bytes(16), b"\xff" * 16):
        low = sum(int.from_bytes(split(secret, [1, 2], 2)[1], "little") < PRIME // 2 for _ in range(2000))
        assert 850 < low < 1150  # six standard deviations


def test_34_bad_points_and_shares_are_refused():
    for points in ([0, 1], [1, 1], [PRIME]):
        with pytest.raises(SecureError, match="points of shares"):
            split(bytes(16), points, 1)
    for needed in (0, 4):
        with pytest.raises(SecureError, match="cannot be needed"):
            split(bytes(16), [1, 2, 3], needed)
    with pytest.raises(SecureError, match="16 bytes, not 3"):
        split(b"abc", [1], 1)
    with pytest.raises(SecureError, match="17 bytes"):
        combine({1: b"short"})
    with pytest.raises(SecureError, match="do not belong together"):
        combine({1: (PRIME - 1).to_bytes(SHARE_BYTES, "little")})
