"""Things of the user's own by name: `package.module:attribute`, as recipes say it."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedwidth.errors import OptionError, unknown


def import_object(kind: str, name: str) -> Any:
    """What `package.module:attribute` names; `kind` is what it is to be, for messages.

    >>> import_object("function", "math:sqrt")(4.0)
    2.0
    """
    module_name, _, path = name.partition(":")
    if not path:
        raise OptionError(f"{kind} '{name}' must be package.module:name, with its name in the module")
    if (here := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.append(here)  # where `python -m` would look too
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module raises while it is imported
        said = f"{kind} '{name}': cannot import '{module_name}': {one_line(error)}{where_failed(error)}"
        raise OptionError(said + _where_to_run(module_name, error)) from error
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise OptionError(f"{kind} '{name}': '{module_name}' has no '{path}'")
        found = getattr(found, attribute)
    return found


def _where_to_run(module_name: str, error: Exception) -> str:
    """What helps where the module itself was not found, and not another that it imports."""
    package, dot, _ = module_name.partition(".")
    if not isinstance(error, ModuleNotFoundError) or error.name != package:
        return ""
    return f"; run in the folder that has {package}{'' if dot else '.py'}, or put it on PYTHONPATH"


def import_function(kind: str, name: str) -> Any:
    """The same, which must be a function or class."""
    found = import_object(kind, name)
    if not callable(found):
        path = name.partition(":")[2]
        raise OptionError(f"{kind} '{name}': '{path}' is a {type(found).__name__}, not a function or class")
    return found


def find_function(kind: str, name: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The function of this name among those that are known, or the user's own that `package.module:function` names.

    >>> find_function("root", "square", {"square": abs}), find_function("root", "math:sqrt", {})(4.0)
    (<built-in function abs>, 2.0)
    """
    if name in known:
        return known[name]
    if ":" not in name:
        raise unknown(kind, name, known, also="or package.module:function for one of your own")
    found: Callable[..., Any] = import_function(kind, name)
    return found


def one_line(error: BaseException) -> str:
    """An error's message in one line, or its type where it has none."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def what_failed(error: BaseException) -> str:
    """An exception's type and message, and where the user's own code raised it, in one line."""
    said = f": {one_line(error)}" if str(error) else ""
    return f"{type(error).__name__}{said}{where_failed(error)}"


def where_failed(error: BaseException) -> str:
    """The last line of the user's own code that an exception came through, in brackets; nothing where there is none.

    Where there is none of the user's own, that of another package, but neither of fedwidth nor of PyTorch.
    """
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    last = {_whose(path): f" ({path.name}, line {line})" for path, line in frames}
    return last.get("the user's own") or last.get("another package's") or ""


def _whose(path: Path) -> str:
    """Whose code a file holds."""
    if any(path.is_relative_to(Path(file).parent) for file in (__file__, torch.__file__)):
        return "fedwidth's or PyTorch's"
    if {"site-packages", "dist-packages"} & {*path.parts}:
        return "another package's"
    in_python = path.is_relative_to(Path(os.__file__).parent) or str(path).startswith("<")
    return "Python's" if in_python else "the user's own"
