"""Finding methods: by name, by import path, and combined of a choice and a local rule."""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from typing import Any

from fedwidth.errors import OptionError, unknown
from fedwidth.methods.definition import Method

UNNAMED = "unnamed"
"""Stands for the module of a method that has no name in any."""

PACKAGE = __name__.rpartition(".")[0]


BOTH = {"change the first state": ("start",), "remember": ("init", "advance"), "close the round": ("close",)}
"""What only one of two combined methods can do, and the parts that do it."""


@cache
def methods() -> dict[str, Method]:
    """Every method of the package by name: each file of its folder that defines METHOD."""
    names = (info.name for info in pkgutil.iter_modules(sys.modules[PACKAGE].__path__))
    modules = (import_module(f"{PACKAGE}.{name}") for name in names)
    found = [module.METHOD for module in modules if hasattr(module, "METHOD")]
    return {m.name: m.with_options() for m in sorted(found, key=lambda m: m.name)}


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


def combine(choice: Method, rule: Method) -> Method:
    """A method that chooses sub-models as the one says and trains them as the other."""
    if choice.name == rule.name:
        return choice
    if rule.local is None:
        trained = [name for name, method in methods().items() if method.local is not None]
        raise OptionError(f"'{rule.name}' has no local rule to train with; local rules: {', '.join(trained)}")
    if (reason := rule.local.refuses(choice)) is not None:
        raise OptionError(f"'{choice.name}' cannot be trained as '{rule.name}': {reason}")
    if choice.local is not None:
        raise OptionError(f"'{choice.name}' has a local rule of its own, so it cannot be trained as '{rule.name}'")
    for what, parts in BOTH.items():
        if all(any(getattr(one, part) is not None for part in parts) for one in (choice, rule)):
            raise OptionError(f"'{choice.name}' cannot be trained as '{rule.name}': both {what} in their own way")
    for name in choice.options.keys() & rule.options.keys():
        if choice.options[name] is not rule.options[name]:
            raise OptionError(f"'{choice.name}' cannot be trained as '{rule.name}': both have an option '{name}'")
    return replace(
        choice,
        title=f"{choice.title} with {rule.title}",
        options={**rule.options, **choice.options},
        local=rule.local,
        start=choice.start or rule.start,
        init=choice.init or rule.init,
        advance=choice.advance or rule.advance,
        close=choice.close or rule.close,
        collect="updates" if "updates" in (choice.collect, rule.collect) else "sums",
        needs={**rule.needs, **choice.needs},
        values={**rule.values, **choice.values},
        made_of=(choice, rule),
    )


@dataclass(frozen=True)
class Reference:
    """How another process finds a method: names or import paths, and the options that are not the defaults."""

    name: str
    local: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, method: Method) -> Reference:
        """The way to a method that this process holds; refuses one that no other process could import."""
        if not method.made_of:
            return cls(_path(method), None, _changed(method))
        choice, rule = method.made_of
        if not _same(combine(choice, rule), method):
            raise _nameless(method)
        return cls(_path(choice), _path(rule), _changed(method))

    def find(self) -> Method:
        """The method, in another process."""
        return method(self.name, local=self.local, **self.options)


def _find(name: object) -> Method:
    """The method of a name or an import path, with its default options."""
    if not isinstance(name, str) or (name not in methods() and ":" not in name):
        raise unknown("method", name, methods(), also='or "package.module:METHOD" for one of your own')
    if name in methods():
        return methods()[name]
    place, _, attribute = name.partition(":")
    if place == UNNAMED:
        raise OptionError(
            f"method '{attribute}' was made in a program and has no name: only that program can go on with it"
        )
    if (here := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.append(here)  # where `python -m` would look too
    try:
        found = getattr(import_module(place), attribute)
    except Exception as error:  # a module may do anything when it is imported
        kind = "" if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: "
        raise OptionError(f"method '{name}' must be package.module:METHOD ({kind}{error})") from error
    if not isinstance(found, Method):
        raise OptionError(f"method '{name}' must be a fedwidth.Method, not a {type(found).__name__}")
    return found.with_options()


def _path(method: Method) -> str:
    """The name of a method of the package, or the import path of another one."""
    if method.name in methods() and _same(methods()[method.name], method):
        return method.name
    home = getattr(method.choose, "__module__", "")
    # Where its choice is defined comes first, and the script that runs last: it has no name elsewhere.
    order = sorted(sys.modules.items(), key=lambda entry: (entry[0] == "__main__", entry[0] != home))
    for _, module in order:
        for name, value in list(getattr(module, "__dict__", {}).items()):
            # Not isinstance: that asks objects for their class, and some of other packages warn or import when asked.
            if type(value) is Method and _same(value, method):
                return f"{module.__name__}:{name}"
    raise _nameless(method)


def _same(one: Method, other: Method) -> bool:
    """Whether two methods differ in the values of their options at the most."""
    own = {field.name for field in fields(Method)} - {"values", "made_of"}
    return all(getattr(one, name) == getattr(other, name) for name in own)


def _changed(method: Method) -> dict[str, Any]:
    """The options that are not at their defaults."""
    return {n: v for n, v in method.values.items() if n in method.options and v != method.options[n].default}


def _nameless(method: Method) -> OptionError:
    return OptionError(
        f"method '{method.name}' has no name in any module, so other processes cannot import it; define it at the top"
        " of a module, or use engine = 'serial'"
    )
