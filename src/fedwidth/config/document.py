"""A parsed TOML document: changing it, and taking text and tables out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedwidth.config.schema import keys, shown
from fedwidth.errors import OptionError

Document = Mapping[str, Any]

OPTIONS_OF = {
    "method.name": "options",
    "local.name": "options",
    "model.name": "options",
    "data.name": "options",
    "data.partition": "partition_options",
}
"""Where the options of what a setting names stand: another name does not keep them."""


def overlay(base: Document, change: Document) -> dict[str, Any]:
    """The document with a change made: tables are merged, everything else is replaced.

    >>> overlay({"method": {"name": "fedrolex", "options": {"step": 2}}}, {"method": {"name": "heterofl"}})
    {'method': {'name': 'heterofl'}}
    """
    base = dict(base)
    for dotted, options in OPTIONS_OF.items():
        section, name = dotted.split(".")
        old, new = base.get(section), change.get(section)
        if isinstance(old, Mapping) and isinstance(new, Mapping) and options in old:
            before = old.get(name, keys()[dotted].default)
            if new.get(name, before) != before:
                base[section] = {key: value for key, value in old.items() if key != options}
    return _merge(base, change)


def _merge(base: Document, change: Document) -> dict[str, Any]:
    merged = dict(base)
    for name, value in change.items():
        old = merged.get(name)
        merged[name] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def change_all(base: Document, changes: Sequence[Document]) -> Document:
    """The document with all changes made, one after the other."""
    for change in changes:
        base = overlay(base, change)
    return base


def tables_of(document: Document, name: str) -> Sequence[Document]:
    """A list of tables of the document, empty where it has none of this name."""
    found = document.get(name, [])
    if not isinstance(found, list) or not all(isinstance(table, Mapping) for table in found):
        raise OptionError(f"{name} must be a list of tables, not {shown(found)}")
    return found


def text_of(document: Document, name: str, default: str) -> str:
    """A text of the document."""
    found = document.get(name, default)
    if not isinstance(found, str):
        raise OptionError(f"{name} must be text, not {shown(found)}")
    return found
