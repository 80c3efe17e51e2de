"""The methods of the package: every file of the folder `methods/` that defines METHOD."""

from __future__ import annotations

import pkgutil
import sys
from functools import cache
from importlib import import_module

from fedwidth.methods.definition import Method

PACKAGE = "fedwidth.methods"


@cache
def methods() -> dict[str, Method]:
    """Every method of the package by name: each file of its folder that defines METHOD."""
    names = (info.name for info in pkgutil.iter_modules(sys.modules[PACKAGE].__path__))
    modules = (import_module(f"{PACKAGE}.{name}") for name in names)
    found = [module.METHOD for module in modules if hasattr(module, "METHOD")]
    return {m.name: m.with_options() for m in sorted(found, key=lambda m: m.name)}
