"""Options of methods: a default, what is allowed, and a test of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedwidth.plan.units import ROUNDINGS


@dataclass(frozen=True)
class Option:
    """One option of a method: its default, what is allowed (for people) and a test of it."""

    default: Any
    allowed: str
    accepts: Callable[[Any], bool]
    help: str


def choice(*names: str, help: str) -> Option:
    """An option with one of these values, the first by default."""
    allowed = " or ".join(f"'{name}'" for name in names)
    return Option(names[0], allowed, lambda value: isinstance(value, str) and value in names, help)


def switch(help: str) -> Option:
    """An option that is off by default."""
    return Option(False, "true or false", lambda value: isinstance(value, bool), help)


def is_share(value: Any) -> bool:
    """A number from 0 to 1."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def is_number(value: Any) -> bool:
    """A finite number of at least 0."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


ROUNDING = choice(*ROUNDINGS, help="how capacity * size becomes units")
