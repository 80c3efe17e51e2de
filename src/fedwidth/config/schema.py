"""From a TOML document to typed records: every key known, every value of its type, every message naming the key.

The records of `settings` say what is allowed; this file reads them and knows no key by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from fedwidth.devices.capacity import parse_capacity
from fedwidth.errors import CapacityError, OptionError
from fedwidth.settings import ArchitectureSettings, Settings

Record = TypeVar("Record")

KINDS: dict[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list[int]: "a list of whole numbers",
    list[float]: "a list of numbers",
    str | list[float]: "text, or a list of numbers",
    dict[str, Any]: "a table",
    list[ArchitectureSettings]: "a list of tables",
}


@dataclass(frozen=True)
class Key:
    """One setting: its dotted name, its type, and what is allowed."""

    name: str
    type: Any
    default: Any
    help: str
    choices: tuple[str, ...]
    least: float | None
    below: float | None
    share: bool

    @property
    def record(self) -> Any:
        """The record that each of its tables is, where it is a list of tables."""
        inner = get_args(self.type)[0] if get_origin(self.type) is list else None
        return inner if _is_record(inner) else None

    @property
    def is_listed(self) -> bool:
        """Whether it is, or may be, a list."""
        return get_origin(self.type) is list or self.type == str | list[float]

    @property
    def expected(self) -> str:
        """What is allowed, for people."""
        if self.choices:
            return "one of " + ", ".join(filter(None, self.choices)) + (", or empty" if "" in self.choices else "")
        if self.share:
            share = 'above 0 and at most 1, e.g. 0.0625 or "1/16"'
            return f"{KINDS[self.type]}{', each' if self.is_listed else ''} {share}"
        least = "" if self.least is None else f" of at least {self.least}"
        return KINDS[self.type] + least + ("" if self.below is None else f" and below {self.below}")


@cache
def keys(kind: type = Settings, path: str = "") -> dict[str, Key]:
    """Every setting by its dotted name, in the order of the records.

    >>> keys()["training.lr"].expected
    'a number of at least 0'
    """
    found: dict[str, Key] = {}
    for part in _fields(kind):
        name, inner = path + part.name, _type(kind, part.name)
        found |= keys(inner, name + ".") if _is_record(inner) else {name: _key(part, name, inner)}
    return found


def sections() -> dict[str, str]:
    """The tables of a recipe file and what each is about."""
    kinds = {part.name: _type(Settings, part.name) for part in _fields(Settings)}
    return {name: kind.__doc__ for name, kind in kinds.items() if _is_record(kind)}


def build(kind: type[Record], table: Mapping[str, Any], path: str = "") -> Record:
    """The record of a (parsed) TOML table; what the table leaves out has its default.

    >>> build(Settings, {"training": {"lr": 1}}).training.lr
    1.0
    >>> build(Settings, {"training": {"learning": 1}})
    Traceback (most recent call last):
    fedwidth.errors.OptionError: unknown key 'training.learning'; allowed in [training]: optimiser, lr, momentum, \
weight_decay, batch_size, epochs, steps, schedule, milestones, decay, clip, mask, smoothing, scaler, augment
    """
    known = {part.name: part for part in _fields(kind)}
    if not isinstance(table, Mapping):
        hint = f" (the key for a name is {path}name)" if "name" in known else ""
        raise OptionError(f"{path.rstrip('.')} must be a table of settings, not {shown(table)}{hint}")
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in known:
            raise unknown_key(path + name, known)
        inner = _type(kind, name)
        if _is_record(inner):
            values[name] = build(inner, value, f"{path}{name}.")
        else:
            values[name] = read(_key(known[name], path + name, inner), value)
    return kind(**values)


def read(key: Key, value: Any) -> Any:
    """The value as the key's type; integers are numbers too, true and false never."""
    if key.type == str | list[float] and isinstance(value, str):
        return value
    if key.is_listed:
        if not isinstance(value, (list, tuple)):
            raise _wrong(key, value)
        if key.record is not None:  # those of a record that was made in Python are looked at too
            tables = [asdict(each) if isinstance(each, key.record) else each for each in value]
            return [build(key.record, table, f"{key.name}.") for table in tables]
        inner = int if key.type == list[int] else float
        return [_number(key, inner, each) for each in value]
    if key.type in (int, float):
        return _number(key, key.type, value)
    if key.type == dict[str, Any]:
        return _plain(key, value)
    if type(value) is not key.type or (key.choices and value not in key.choices):
        raise _wrong(key, value)
    return value


def check_table(key: Key, value: Any) -> None:
    """Refuse what is no table, or a table, or one inside it, that goes by other things than text.

    What a table holds is the business of who takes it: in Python that may be more than TOML can say.
    """
    if not isinstance(value, Mapping):
        raise _wrong(key, value)
    tables = [value]
    while tables:
        for name, inner in tables.pop().items():
            if not isinstance(name, str):
                raise OptionError(f"{key.name} must be a table that goes by text, not by {name!r}")
            tables += [inner] if isinstance(inner, Mapping) else []


def unknown_key(name: str, allowed: Iterable[str]) -> OptionError:
    """Say that there is no such key, what was probably meant and what is allowed in its table."""
    names, (section, _, leaf) = list(allowed), name.rpartition(".")
    near = [f"{section}.{other}" if section else other for other in get_close_matches(leaf, names, n=1)]
    near = near or [other for other in keys() if other.endswith("." + leaf)]
    hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
    where = f"in [{section}]" if section else "at the top"
    allowed_there = "" if near and not section else f"; allowed {where}: {', '.join(names)}"  # there are 30 at the top
    return OptionError(f"unknown key '{name}'{hint}{allowed_there}")


def shown(value: Any) -> str:
    """A value as one would write it in TOML, or as Python shows it.

    >>> print(shown(True), shown("a"), shown([1, 0.5]))
    true "a" [1, 0.5]
    """
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:
        return str(value)


def _number(key: Key, kind: type, value: Any) -> int | float:
    if key.share and isinstance(value, str):
        try:
            return parse_capacity(value)
        except CapacityError:
            raise _wrong(key, value) from None
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        raise _wrong(key, value)
    try:
        number: int | float = kind(value)
    except OverflowError:
        raise _wrong(key, value) from None
    if not math.isfinite(number) or (key.least is not None and number < key.least):
        raise _wrong(key, value)
    if key.below is not None and number >= key.below:
        raise _wrong(key, value)
    if key.share and not 0 < number <= 1:
        raise _wrong(key, value)
    return number


def _plain(key: Key, value: Any) -> dict[str, Any]:
    """A table of options: anything TOML can say but dates and times."""

    def copy(part: Any) -> Any:
        if isinstance(part, Mapping):
            return {name: copy(inner) for name, inner in part.items()}
        if isinstance(part, (list, tuple)):
            return [copy(inner) for inner in part]
        if not isinstance(part, (str, bool, int, float)):
            raise OptionError(f"{key.name} may hold text, numbers, true and false, lists and tables, not {part!s}")
        return part

    check_table(key, value)
    return {name: copy(inner) for name, inner in value.items()}


def _wrong(key: Key, value: Any) -> OptionError:
    return OptionError(f"{key.name} must be {key.expected}, not {shown(value)}")


def _key(part: Field[Any], name: str, kind: Any) -> Key:
    default = part.default_factory() if part.default_factory is not MISSING else part.default
    return Key(name, kind, default, **part.metadata)


def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind)


def _is_record(kind: Any) -> bool:
    return is_dataclass(kind)


@cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _type(kind: Any, name: str) -> Any:
    """The type of a field; `X | None` is X, as a document has no way to say None."""
    found = _types(kind)[name]
    optional = get_origin(found) is UnionType and NoneType in get_args(found)
    return get_args(found)[0] if optional else found
