"""Paired differences over seeds, against published tables and numbers worked by hand."""

import pytest

from fedwidth.analysis.difference import ABOVE, BELOW, EQUAL, ONE_SEED, OPEN, Difference, compare, correct, holm
from fedwidth.analysis.student import quantile, share_above, share_within
from fedwidth.objectives.metric import Measure

SLEEP = (1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4)
"""Hours of sleep gained with one drug over the other (Student 1908, from Cushny and Peebles 1905)."""


@pytest.mark.parametrize(
    ("within", "freedom", "printed"),
    [
        *((0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 3, 3.182), (0.95, 4, 2.776), (0.95, 9, 2.262)),
        *((0.95, 30, 2.042), (0.95, 120, 1.980), (0.99, 1, 63.657), (0.99, 2, 9.925), (0.99, 5, 4.032)),
        *((0.90, 2, 2.920), (0.90, 3, 2.353), (0.90, 10, 1.812)),
    ],
)
def test_the_printed_table_of_student_s_t(within, freedom, printed):
    assert quantile(within, freedom) == pytest.approx(printed, abs=6e-4)
    assert share_within(quantile(within, freedom), freedom) == pytest.approx(within, abs=1e-12)
    assert share_above(quantile(within, freedom), freedom) == pytest.approx((1 - within) / 2, abs=1e-12)
    assert share_above(-quantile(within, freedom), freedom) == pytest.approx((1 + within) / 2, abs=1e-12)


def test_one_and_two_degrees_of_freedom_have_closed_forms():
    assert share_within(1, 1) == pytest.approx(0.5)  # Cauchy: 2/pi atan 1
    assert share_within(2, 2) == pytest.approx(2 / (2 + 4) ** 0.5)  # t / sqrt(2 + t^2)


def test_student_s_own_example():
    # Published everywhere: t = 4.0621 with 9 degrees of freedom, p = 0.002833, 95 %: 0.7001142 to 2.4598858.
    sleep = Difference(SLEEP)
    assert sleep.mean == pytest.approx(1.58)
    assert sleep.mean / sleep.error == pytest.approx(4.0621, abs=5e-5)
    assert sleep.plain_p_value == pytest.approx(0.002833, abs=5e-7)
    assert sleep.interval == pytest.approx((0.7001142, 2.4598858), abs=5e-8)
    assert sleep.verdict == ABOVE
    assert str(sleep) == "+1.6 (+0.7 to +2.5)"
    assert sleep.sentence("A", "B") == "A is 1.6 points above B (95 %: 0.7 to 2.5, ten seeds)."


def test_the_same_the_other_way_round():
    turned = Difference(tuple(-value for value in SLEEP))
    assert turned.verdict == BELOW
    assert turned.sentence("B", "A") == "B is 1.6 points below A (95 %: 0.7 to 2.5, ten seeds)."


def test_equal_is_an_interval_of_90_percent_within_the_margin():
    # 0.1, -0.1, 0.2, -0.2: deviation sqrt(0.1 / 3), error 0.0913; t of 3 at 90 % is 2.353, so 0 ± 0.215.
    assert Difference((0.1, -0.1, 0.2, -0.2)).verdict == EQUAL
    # 0.6, 1.0: mean 0.8, error 0.2; t of 1 at 90 % is 6.314, so 0.8 ± 1.26: neither apart nor equal.
    assert Difference((0.6, 1.0)).verdict == OPEN
    for shift in (0.5, 0.78, 0.79, 0.9):  # 0.215 below the margin lies 0.785
        values = tuple(shift + value for value in (0.1, -0.1, 0.2, -0.2))
        assert Difference(values).is_equal == (shift + 2.353363 * 0.0912871 < 1)


def test_a_small_difference_may_be_sure_and_equal_at_once():
    both = Difference((0.3, 0.31, 0.29, 0.3))
    assert (
        both.sentence("A", "B") == "A is 0.3 points above B (95 %: 0.3 to 0.3, four seeds); they are equal within ±1."
    )


def test_what_is_not_decided_says_so():
    # 0, 4: mean 2, error 2; t of 1 is 12.706, so 2 ± 25.4
    found = Difference((0.0, 4.0)).sentence("A", "B")
    assert found == "Between A and B it is not decided (difference +2.0, 95 %: −23.4 to +27.4, two seeds)."


def test_one_seed_has_no_interval():
    one = Difference((-2.31,))
    assert one.interval is None
    assert one.verdict == ONE_SEED
    assert not one.is_decided
    assert not one.is_equal
    assert one.sentence("A", "B") == "A is 2.3 points below B (one seed: no interval)."
    assert str(one) == "−2.3"


def test_runs_that_are_the_same_are_equal_and_a_constant_lead_is_sure():
    assert Difference((0.0, 0.0)).verdict == EQUAL
    assert Difference((2.0, 2.0, 2.0)).verdict == ABOVE


def test_two_seeds_that_differ_by_the_same_number_of_samples_decide_nothing():
    """12 more of 355 test samples are right with both seeds: in percent they differ in their last bits."""
    alike = Difference((100 * 212 / 355 - 100 * 200 / 355, 100 * 312 / 355 - 100 * 300 / 355))
    assert alike.values[0] != alike.values[1]
    assert (alike.interval, alike.verdict) == (None, OPEN)
    assert alike.sentence("A", "B") == "A is 3.4 points above B (two seeds differ by the same: no interval)."
    assert alike.gain_sentence("A", "B") == "A's gain over B is +3.4 (two seeds differ by the same: no interval)."
    tiny = Difference((2.0e-6, 2.8e-6), measure=Measure("mse", "mean squared error"))
    assert tiny.interval is not None, "how small a number is depends on its unit"
    sure = Difference((1.0, 1.1))
    assert [each.of for each in correct([alike, sure])] == [1, 1], "it does not count among comparisons"
    assert correct([alike, sure])[1].p_value == pytest.approx(sure.plain_p_value)


def test_holm_by_hand():
    # In order: 4 x 0.01, 3 x 0.02, then 2 x 0.03 and 1 x 0.04, neither below what came before.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([]) == []


def test_what_one_comparison_decides_ten_need_not():
    alone = Difference((1.0, 2.0, 3.0))  # mean 2, error 0.577: t = 3.46, p = 0.074
    sure = Difference((2.0, 2.2, 2.4, 2.1, 2.3))
    near = Difference((1.0, 2.0, 3.0, 2.0))  # t = 4.90 of 3 degrees: p = 0.016
    assert alone.verdict == OPEN
    assert near.verdict == ABOVE
    corrected = correct([near, sure, *[alone] * 4, Difference((5.0,))])
    assert [each.verdict for each in corrected] == [OPEN, ABOVE, *[OPEN] * 4, ONE_SEED]
    assert corrected[0].of == 6  # the one seed is no test
    assert corrected[0].interval == near.interval
    assert "it is not decided among six comparisons (difference +2.0," in corrected[0].sentence("A", "B")


def test_only_seeds_that_both_have_are_compared():
    assert compare({1: 50.0, 2: 60.0, 4: 70.0}, {2: 58.0, 1: 49.5, 3: 1.0}) == Difference((0.5, 2.0))
    assert compare({1: 50.0}, {2: 50.0}) is None
