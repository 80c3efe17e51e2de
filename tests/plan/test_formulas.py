"""Followed integers: ordinary arithmetic, remembered formulas, inverted equations."""

from __future__ import annotations

import copy
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwidth.plan.formulas import Binary, Constraints, FollowedInt, Held, Number, evaluate, formula_of, invert, replace

X = Held("module", "x")


def followed(value: int) -> FollowedInt:
    return FollowedInt(value, X, Constraints())


def value_at(number: int, x: int) -> int:
    """The followed number's formula at another value of its attribute."""
    settled = replace(formula_of(number), lambda atom: Number(x) if atom == X else atom)
    return evaluate(settled, lambda axis: axis)


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 50), st.integers(2, 50), st.integers(1, 9))
def test_formulas_follow_the_arithmetic(x: int, other: int, n: int) -> None:
    def compute(size: int) -> list[int]:
        return [size + n, n + size, size - n, n - size, size * n, n * size, size // n, (100 * n) // size, -size]

    for number, at_x, at_other in zip(compute(followed(x)), compute(x), compute(other), strict=True):
        assert int(number) == at_x == value_at(number, x)
        assert value_at(number, other) == at_other


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 9))
def test_an_inverted_formula_gives_the_attribute_back(x: int, factor: int, term: int) -> None:
    for make in (
        lambda s: s * factor + term,
        lambda s: term + factor * s,
        lambda s: (s * factor) // factor,
        lambda s: 1000 - s * factor,
        lambda s: s - term,
    ):
        formula = invert(formula_of(make(followed(7))), Number(make(x)), X)
        assert formula is not None
        assert evaluate(formula, lambda axis: axis) == x


def test_an_attribute_that_occurs_twice_is_not_guessed() -> None:
    assert invert(Binary("*", X, X), Number(9), X) is None
    assert invert(Number(9), Number(9), X) is None


def test_comparing_states_an_equation() -> None:
    number = followed(6)
    assert number == 6
    assert (number != 6) is False
    assert number != 7
    assert number not in ("six", None)
    assert number.constraints.equations == [(X, Number(6))] * 2
    assert {6: "six"}[number] == "six"


@pytest.mark.parametrize("root", [lambda n: n**-0.5, math.sqrt, float])
def test_a_root_is_noted(root: object) -> None:
    number = followed(9)
    assert type(root(number)) is float
    assert number.constraints.rooted == {X: None}


def test_other_uses_leave_ordinary_integers() -> None:
    number = followed(6)
    for result in (number % 4, number**2, abs(number), number | 1, copy.deepcopy(number)):
        assert type(result) is int
    assert list(range(followed(3))) == [0, 1, 2]
    assert f"{number} {number:03d}" == "6 006"
