"""Between settings and methods: the method that settings name, and the settings that a method or objective needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

from fedwidth.config.schema import keys
from fedwidth.errors import OptionError, unknown
from fedwidth.methods import Method, Reference, method
from fedwidth.methods.lookup.by_name import UNNAMED
from fedwidth.methods.lookup.own_norms import why_not_by_capacity
from fedwidth.objectives import Objective
from fedwidth.settings import LocalSettings, MethodSettings, Settings


def method_of(settings: Settings) -> Method:
    """The method the settings name, with its local rule and all options."""
    chosen, local = settings.method, settings.local
    options = {**chosen.options, **local.options}
    if local.options and not local.name:
        raise OptionError("local.options are those of a local rule, so local.name must name one")
    if "local" in options:
        raise OptionError("a local rule is named by local.name, not by an option 'local'")
    if twice := sorted(chosen.options.keys() & local.options.keys()):
        raise OptionError(f"option '{twice[0]}' stands in method.options and in local.options")
    return method(chosen.name, local=local.name or None, **options)


def name_method(settings: Settings, method: Method) -> Settings:
    """The settings with the name of a method that was made in Python, so that they say what was run."""
    try:
        found = Reference.of(method)
    except OptionError:  # then nobody can find it by these settings, and engines with workers say so
        return replace(settings, method=MethodSettings(f"{UNNAMED}:{method.name}"), local=LocalSettings())
    chosen = MethodSettings(found.name, dict(found.options))
    return replace(settings, method=chosen, local=LocalSettings(found.local or ""))


def check_exponent(settings: Settings, method: Method) -> None:
    """Refuse an exponent of holders where the method does not average over them."""
    if settings.server.holders_exponent != 1.0 and (method.close is not None or not method.slices):
        raise OptionError(
            f"server.holders_exponent is {settings.server.holders_exponent:g}, but {method.title} does not average over"
            " holders: with it only 1 is possible"
        )


def check_norms(settings: Settings, method: Method) -> None:
    """Refuse norms by capacity where clients of one capacity cannot be averaged by themselves."""
    server = settings.server
    if server.norms == "shared":
        return
    if (reason := why_not_by_capacity(method)) is not None:
        raise OptionError(f"server.norms must be shared with {method.title}: {reason}")
    if settings.secure.enabled:
        raise OptionError("server.norms must be shared with secure.enabled: a sum is opened for all who hold a part")
    if settings.privacy.noise:
        raise OptionError(
            "server.norms must be shared with privacy.noise: the noise is made for one sum of all clients"
        )
    if server.clip or server.screen or server.robust != "none":
        raise OptionError(
            "server.norms must be shared with server.clip, screen and robust: they compare updates of one state, and"
            " clients of each capacity would be sent another"
        )
    if settings.adapter.rank:
        raise OptionError("server.norms must be shared with adapter.rank: the model's norms are frozen there")


PUBLIC = 0.1
"""The share of the training data that the server holds where a method needs some and nobody said how much."""


def with_public(settings: Settings) -> Settings:
    """The settings with data of the server's own, unless they name some."""
    if settings.data.public or settings.data.public_name:
        return settings
    return replace(settings, data=replace(settings.data, public=PUBLIC))


def check_public_given(settings: Settings, method: Method, given: Mapping[str, Any]) -> None:
    """Refuse a recipe (`given`) that says the server has no data of its own, where a method needs some."""
    if method.public and not settings.data.public_name and given.get("data", {}).get("public") == 0:
        raise OptionError(
            f"{method.title} needs data of the server's own, and data.public is 0: leave it out (it is then"
            f" {PUBLIC:g}), give a share between 0 and 1 (--set data.public={PUBLIC:g}), or name a data set as"
            " data.public_name"
        )


def with_needs(settings: Settings, needing: Method | Objective, given: Mapping[str, Any] | None = None) -> Settings:
    """The settings with those that a method or an objective needs; one that was given otherwise is refused.

    `given` is what a recipe says; without it, a setting that has its default value counts as not given.
    """
    for name, need in needing.needs.items():
        section, _, key = name.rpartition(".")
        if not section or name not in keys():
            allowed = [known for known in keys() if "." in known]
            raise unknown(f"setting that {needing.title} needs", name, allowed)
        value = reduce(getattr, name.split("."), settings)
        if value == need.value:
            continue
        said = key in given.get(section, {}) if given is not None else value != keys()[name].default
        if said:
            raise OptionError(f"{needing.title} needs {name} = {need.value!r}, not {value!r}: {need.why}")
        settings = replace(settings, **{section: replace(getattr(settings, section), **{key: need.value})})
    return settings
