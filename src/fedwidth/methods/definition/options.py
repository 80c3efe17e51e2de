"""Options of methods: the default, what is allowed in words, and a test of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedwidth.plan.units import ROUNDINGS


@dataclass(frozen=True)
class Option:
    """One option of a method: its default, what is allowed in words, and a test of it."""

    default: Any
    allowed: str
    accepts: Callable[[Any], bool]
    help: str

    def allows(self, value: Any) -> bool:
        """Whether a value is allowed; one that the test fails on, as on text where it compares numbers, is not."""
        try:
            return bool(self.accepts(value))
        except Exception:  # the test is anybody's function
            return False


def choice(*names: str, help: str) -> Option:
    """An option whose value is one of these names; the first is the default."""
    allowed = " or ".join(f"'{name}'" for name in names)
    return Option(names[0], allowed, lambda value: isinstance(value, str) and value in names, help)


def switch(help: str) -> Option:
    """An option that is on or off; off is the default."""
    return Option(False, "true or false", lambda value: isinstance(value, bool), help)


def is_share(value: Any) -> bool:
    """Whether a value is a number from 0 to 1."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def is_number(value: Any) -> bool:
    """Whether a value is a finite number of at least 0."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def at_least_zero(default: float, help: str) -> Option:
    """An option whose value is a number of at least 0."""
    return Option(default, "a number of at least 0", is_number, help)


def above_zero(default: float, help: str) -> Option:
    """An option whose value is a number above 0."""
    return Option(default, "a number above 0", lambda value: is_number(value) and value > 0, help)


def share(default: float, help: str) -> Option:
    """An option whose value is a share from 0 to 1."""
    return Option(default, "a share from 0 to 1", is_share, help)


def count(default: int, help: str, *, least: int = 0) -> Option:
    """An option whose value is a whole number."""
    return Option(default, f"a whole number of at least {least}", lambda v: type(v) is int and v >= least, help)


ROUNDING = choice(*ROUNDINGS, help="how capacity * size becomes units")
