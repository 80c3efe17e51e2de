"""Models that answer together."""

from math import inf, nan

from fedwidth.models.together import choose_together


def test_scores_that_are_no_numbers_choose_nothing_more():
    assert choose_together(3, lambda some: nan) == [0]
    assert choose_together(2, lambda some: {(0,): nan, (1,): 0.5}.get(tuple(some), nan)) == [1]
    assert choose_together(2, lambda some: -inf) == [0]


def test_one_that_adds_nothing_is_left_out():
    assert choose_together(3, len) == [0, 1, 2]
    assert choose_together(3, lambda some: 1.0) == [0]
