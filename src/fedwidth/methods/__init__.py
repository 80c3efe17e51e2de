"""The methods, one small file each; `fedwidth.method(name, **options)` finds them by name."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any

from fedwidth.errors import unknown
from fedwidth.methods.definition import History, Method, Moment, Task, per_group
from fedwidth.methods.options import ROUNDING, Option

__all__ = ["ROUNDING", "History", "Method", "Moment", "Option", "Task", "method", "methods", "per_group"]


@cache
def methods() -> dict[str, Method]:
    """Every method by name: each file of this folder that defines METHOD."""
    modules = (import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    found = [module.METHOD for module in modules if hasattr(module, "METHOD")]
    return {m.name: m.with_options() for m in sorted(found, key=lambda m: m.name)}


def method(name: str, /, **options: Any) -> Method:
    """The method of this name with its options set.

    >>> method("fedrolex", step=2).values["step"]
    2
    """
    if not isinstance(name, str) or name not in methods():
        raise unknown("method", name, methods())
    return methods()[name].with_options(**options)
