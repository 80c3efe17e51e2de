"""The methods, one small file each; `fedwidth.method(name, **options)` finds them by name.

What a method is stands in `definition/`, how it is found in `lookup/`, what several have in common in `shared/`.

The package can be called: `fedwidth.methods()` gives every method by name, and
`from fedwidth.methods import Method, per_group` is what a method of one's own begins with.
"""

from __future__ import annotations

import sys
from types import ModuleType

from fedwidth.methods.definition import (
    ROUNDING,
    Beginning,
    ClientPass,
    Closing,
    Local,
    LocalMoment,
    Memory,
    Method,
    Moment,
    Need,
    Option,
    Sending,
    Task,
    named,
    per_group,
    under,
)
from fedwidth.methods.lookup.by_name import method
from fedwidth.methods.lookup.catalogue import methods
from fedwidth.methods.lookup.combination import combine
from fedwidth.methods.lookup.reference import Reference

__all__ = [
    "ROUNDING",
    "Beginning",
    "ClientPass",
    "Closing",
    "Local",
    "LocalMoment",
    "Memory",
    "Method",
    "Moment",
    "Need",
    "Option",
    "Reference",
    "Sending",
    "Task",
    "combine",
    "method",
    "methods",
    "named",
    "per_group",
    "under",
]


def __getattr__(name: str) -> object:
    if name == "History":
        return getattr(sys.modules["fedwidth"], name)  # which says what has become of it
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


class _Callable(ModuleType):
    """The type of this package, which can be imported from and called."""

    def __call__(self) -> dict[str, Method]:
        """Every method by name."""
        return methods()


sys.modules[__name__].__class__ = _Callable
