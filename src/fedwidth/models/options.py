"""Checks of the numbers a model is built from."""

from __future__ import annotations

from collections.abc import Sequence

from fedwidth.errors import OptionError


def positive(name: str, value: int) -> int:
    """`value` if it is a whole number of at least one.

    >>> positive("classes", 0)
    Traceback (most recent call last):
    fedwidth.errors.OptionError: classes must be a whole number of at least 1, not 0
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name} must be a whole number of at least 1, not {value!r}")
    return value


def sizes(name: str, values: Sequence[int]) -> tuple[int, ...]:
    """`values` as a tuple of whole numbers of at least one."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise OptionError(f"{name} must be a list of whole numbers, not {values!r}")
    return tuple(positive(f"every number of {name}", value) for value in values)


def image(data_shape: Sequence[int]) -> tuple[int, int, int]:
    """`data_shape` as (channels, height, width)."""
    shape = sizes("data_shape", data_shape)
    if len(shape) != 3 or min(shape[1:]) < 2:
        raise OptionError(f"data_shape must be (channels, height, width) of an image, not {list(shape)}")
    return shape[0], shape[1], shape[2]
