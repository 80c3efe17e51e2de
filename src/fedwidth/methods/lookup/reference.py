"""How another process finds a method that this one holds: worker processes, Ray's workers, Flower's devices."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from fedwidth.errors import OptionError
from fedwidth.methods.definition import Method
from fedwidth.methods.lookup.by_name import method
from fedwidth.methods.lookup.catalogue import methods
from fedwidth.methods.lookup.combination import combine


@dataclass(frozen=True)
class Reference:
    """How another process finds a method: names or import paths, and the options that are not the defaults."""

    name: str
    local: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, method: Method) -> Reference:
        """Say how a method of this process is found; refuse one that no other process could import."""
        if not method.made_of:
            return cls(_path(method), None, _changed(method))
        choice, rule = method.made_of
        if not _same(combine(choice, rule), method):
            raise _nameless(method)
        return cls(_path(choice), _path(rule), _changed(method))

    def find(self) -> Method:
        """The method that is meant, imported by the process that asks."""
        return method(self.name, local=self.local, **self.options)


def is_shipped(method: Method) -> bool:
    """Whether a method is one of the package's, or made of two of them, and nothing of it was changed."""
    if method.made_of:
        return all(map(is_shipped, method.made_of)) and _same(combine(*method.made_of), method)
    return method.name in methods() and _same(methods()[method.name], method)


def _path(method: Method) -> str:
    """The name of a method of the package, or the import path of another one."""
    if is_shipped(method):
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
    """Whether two methods are alike in all but the values of their options and what a run gives them."""
    own = {field.name for field in fields(Method)} - {"values", "architectures", "enrolled", "made_of"}
    return all(getattr(one, name) == getattr(other, name) for name in own)


def _changed(method: Method) -> dict[str, Any]:
    """The options whose values are not the defaults."""
    return {n: v for n, v in method.values.items() if n in method.options and v != method.options[n].default}


def _nameless(method: Method) -> OptionError:
    return OptionError(
        f"method '{method.name}' has no name in any module, so other processes cannot import it; define it at the top"
        " of a module, or use engine = 'serial'"
    )
