"""Errors a user can act on: one sentence that names what is wrong and what is allowed.

Everything fedwidth raises on purpose is a `FedwidthError`; the command line prints it as one line and exits with 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from operator import index


class FedwidthError(ValueError):
    """Bad input: the message is one sentence for the user."""


class CapacityError(FedwidthError):
    """A capacity outside (0, 1], or a width that leaves no unit."""


class PlanError(FedwidthError):
    """A model that cannot be sliced, or a plan that does not belong to the model."""


class StateError(FedwidthError):
    """A state whose names, shapes or dtypes do not fit the plan, or with a value that is not finite."""


class SelectionError(FedwidthError):
    """An index that does not fit the plan, or a sub-model of another index."""


class UpdateError(FedwidthError):
    """An update that must not be averaged: not finite, wrong shape, no weight."""


class ClientError(FedwidthError):
    """A client that failed. The message names round, client, capacity and stage; `__cause__` is what happened."""


class OptionError(FedwidthError):
    """An unknown name or option, or a value of the wrong kind."""


class DataError(FedwidthError):
    """Data that is missing, damaged or cannot be split as asked."""


class SecureError(FedwidthError):
    """A secure sum that is not opened, or a message of one that must not be answered. It never names a secret."""


class FellBack(UserWarning):
    """A warning that an engine cannot train this run, and that clients are trained one at a time instead."""


MAX_NAMED, NEAREST = 40, 5
"""Up to so many allowed names are listed in full; of more, only so many that are nearest to what was given."""


def unknown(kind: str, name: object, allowed: Iterable[str], also: str = "") -> OptionError:
    """Say that `name` is not a known `kind`, what was probably meant, what is allowed and what `also` helps.

    >>> print(unknown("method", "fedrolx", ["fedavg", "fedrolex"]))
    unknown method 'fedrolx' (did you mean 'fedrolex'?); allowed: fedavg, fedrolex
    """
    names = list(allowed)
    near = get_close_matches(str(name), names, n=1)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    listed = f"allowed: {', '.join(names) or 'none'}"
    if len(names) > MAX_NAMED:
        nearest = get_close_matches(str(name), names, n=NEAREST, cutoff=0)
        listed = f"the nearest of {len(names)} allowed: {', '.join(nearest)}"
    return OptionError(f"unknown {kind} '{name}'{hint}; {listed}{also and '; '}{also}")


def whole_number(name: str, value: object, *, least: int = 0) -> int:
    """`value` as an int from `least` on; numpy's integers count, True and 1.0 do not.

    >>> whole_number("rounds", 0, least=1)
    Traceback (most recent call last):
    fedwidth.errors.OptionError: rounds must be a whole number from 1 on, not 0
    """
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise OptionError(f"{name} must be a whole number from {least} on, not {value!r}")
    return number
