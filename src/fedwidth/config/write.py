"""Settings written down: as a TOML file that gives them back, and as a list that explains each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fedwidth.config.given import GIVEN
from fedwidth.config.recipe import RECIPE_KEYS
from fedwidth.config.schema import keys, sections
from fedwidth.errors import OptionError
from fedwidth.settings import Settings

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def settings_toml(settings: Settings, given: Mapping[str, str] | None = None) -> str:
    """All settings as TOML; `read_settings` of it gives equal settings.

    What a run was `given` in Python comes first: `read_settings` refuses that, because no settings name it.

    >>> from fedwidth.config.read import read_settings
    >>> read_settings(settings_toml(Settings())).main == Settings()
    True
    """
    everything = asdict(settings)
    lines = [f"{GIVEN} = {_toml(GIVEN, given)}"] if given else []
    lines += [f"{name} = {_toml(name, value)}" for name, value in everything.items() if name not in sections()]
    for section in sections():
        lines += ["", f"[{section}]"]
        lines += [f"{name} = {_toml(f'{section}.{name}', value)}" for name, value in everything[section].items()]
    return "\n".join(lines) + "\n"


def explain_settings() -> str:
    """Every setting with what is allowed, its default and its meaning."""
    lines = ["Settings of a run, for recipe files and `--set key=value`, with their defaults."]
    about, section = {"": "The run as a whole.", **sections()}, None
    for key in sorted(keys().values(), key=lambda key: "." in key.name):
        here = key.name.rpartition(".")[0]
        if here != section:
            section = here
            lines += ["", about[section]]
        lines += [f"  {key.name} = {_toml(key.name, key.default)}", f"      {key.help} ({key.expected})"]
    lines += ["", f"A recipe file may also hold {', '.join(RECIPE_KEYS)}: see docs/recipes.md."]
    return "\n".join(lines)


def _toml(name: str, value: Any) -> str:
    """A value in TOML's own notation."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(name, each) for each in value) + "]"
    if isinstance(value, Mapping):
        inside = (f"{_toml_key(key)} = {_toml(f'{name}.{key}', each)}" for key, each in value.items())
        return "{" + ", ".join(inside) + "}"
    raise OptionError(f"{name} cannot be written down: {value!r}; allowed: text, numbers, true, false, lists, tables")


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _quoted(key)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
