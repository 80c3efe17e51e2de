"""A method by its name or import path, with its options set."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedwidth.errors import OptionError, unknown
from fedwidth.methods.definition import Method
from fedwidth.methods.lookup.catalogue import methods
from fedwidth.methods.lookup.combination import combine

UNNAMED = "unnamed"
"""Stands in place of a module for a method that has no name in any module."""


def method(name: str, /, *, local: str | None = None, **options: Any) -> Method:
    """The method of this name with its options set: one of the package's, or your own as "package.module:METHOD".

    With `local`, sub-models are chosen as the one method says and trained as the other; options go to whichever has
    them.

    >>> method("fedrolex", step=2).values["step"]
    2
    >>> both = method("fedrolex", local="fedprox", mu=0.1, step=2)
    >>> both.title, both.values["mu"], both.values["step"]
    ('FedRolex with FedProx', 0.1, 2)
    """
    choice, rule = _find(name), _find(local) if local else None
    mine = {name: value for name, value in options.items() if rule is None or name not in rule.options}
    theirs = {name: value for name, value in options.items() if name not in mine}
    for name in theirs.keys() & choice.options.keys():  # both have it, and mean the same
        mine[name] = theirs[name]
    choice = choice.with_options(**mine)
    return choice if rule is None else combine(choice, rule.with_options(**theirs))


def _look_here() -> None:
    """Let modules in the current folder be found, as `python -m` finds them."""
    if (here := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.append(here)


def _own_module(name: str) -> str:
    """The module that somebody means who gives it without a method, or as a file; empty where there is none."""
    module = name.removesuffix(".py")
    if not module.isidentifier() or module in sys.stdlib_module_names:
        return ""  # what lies inside a package is not looked for, as that would import the package
    _look_here()
    with suppress(ValueError):  # of a module that has none
        spec = find_spec(module)
        return module if spec and spec.origin else ""  # a mere folder is no module either
    return ""


def _find(name: object) -> Method:
    """The method of a name or an import path, with its default options."""
    if not isinstance(name, str) or (name not in methods() and ":" not in name):
        if isinstance(name, str) and (module := _own_module(name)):
            raise OptionError(f"method '{name}' is a module: did you mean '{module}:METHOD', with your method's name?")
        raise unknown("method", name, methods(), also='or "package.module:METHOD" for one of your own')
    if name in methods():
        return methods()[name]
    module, _, attribute = name.partition(":")
    if module == UNNAMED:
        raise OptionError(
            f"method '{attribute}' was made in a program and has no name: only that program can go on with it"
        )
    _look_here()
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:  # a module may do anything when it is imported
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):  # not one it imports
            raise OptionError(
                f"method '{name}': there is no module '{error.name}' in the current folder or among installed packages"
            ) from error
        kind = "" if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: "
        raise OptionError(f"method '{name}' must be package.module:METHOD ({kind}{error})") from error
    if not isinstance(found, Method):
        raise OptionError(f"method '{name}' must be a fedwidth.Method, not a {type(found).__name__}")
    return found.with_options()
