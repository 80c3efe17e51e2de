"""What a run was given in Python: each thing of the right kind, one fit for the other, and how it is written down.

What only the program has that gave it stands in config.toml, under the key `given`, by the name it has there: such a
config is no recipe until its settings name these things, and who reads it is told so.
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

from torch import nn

from fedwidth.core.narrow import copy_model
from fedwidth.data import Data, Partition
from fedwidth.devices.capacity import Capacities, parse_capacity, read_capacity
from fedwidth.devices.time import EVERYBODY
from fedwidth.errors import CapacityError, OptionError
from fedwidth.importing import one_line
from fedwidth.methods import Method
from fedwidth.methods.lookup.by_name import UNNAMED
from fedwidth.objectives import Objective
from fedwidth.settings import Settings

KINDS: dict[str, tuple[Any, str]] = {
    "model": (nn.Module, "a torch.nn.Module"),
    "data": (Data, "fedwidth.data.Data, as from_tensors, from_dataset and from_clients make it"),
    "partition": (Partition, "a fedwidth.data.Partition, as make_partition makes it"),
    "method": (Method, "a fedwidth.Method, as fedwidth.method(name) finds it"),
    "objective": (Objective | str, "a fedwidth.Objective, or its name"),
    "public": (Data, "fedwidth.data.Data"),
}
"""What may be given, of which type, and how one comes by it."""

GIVEN = "given"
"""The key of config.toml under which it is written down."""

NAMED_BY = {
    "model": "model.name=package.module:factory",
    "models": "models=[{name='package.module:factory', capacities=[…]}]",
    "data": "data.name=package.module:function",
    "partition": "data.partition=package.module:function",
    "public": "data.public_name=package.module:function",
    "method": "method.name=package.module:METHOD",
    "objective": "objective.name=package.module:OBJECTIVE",
}
"""What only a program may have, and the setting that names it in a recipe instead."""


def check_given(settings: object, **given: object) -> None:
    """Refuse what is of another kind; None is what was not given."""
    if not isinstance(settings, Settings):
        raise OptionError(f"settings must be fedwidth.settings.Settings, not {_kind(settings)}")
    for field in fields(Settings):
        default, found = getattr(Settings(), field.name), getattr(settings, field.name)
        if is_dataclass(default) and not isinstance(found, type(default)):
            raise OptionError(f"settings.{field.name} must be {type(default).__name__}(…), not {_kind(found)}")
    check_kinds(**given)
    model = given["model"]
    if isinstance(model, nn.Module) and any(tensor.is_meta for tensor in model.parameters()):
        raise OptionError("model is on the meta device, where weights have no values: model.to_empty and its own start")


def check_kinds(**given: object) -> None:
    """Refuse what is of another kind than its name says; None is what was not given."""
    for name, thing in given.items():
        kind, wanted = KINDS[name]
        if thing is not None and not isinstance(thing, kind):
            raise OptionError(f"{name} must be {wanted}, not {_kind(thing)}")


def copied(model: nn.Module) -> nn.Module:
    """A copy of a model that was given, on the CPU, so that the user's own stays as it is."""
    try:
        return copy_model(model).cpu()
    except Exception as error:  # a model may hold anything
        raise OptionError(f"the model cannot be copied with copy.deepcopy: {one_line(error)}") from error


def as_in_recipe(settings: Settings) -> Settings:
    """The settings with lists where Python gave tuples, with numbers where a width is written as text, and with text
    where a table goes by numbers.

    >>> from fedwidth.settings import DeviceSettings, EvaluationSettings
    >>> as_in_recipe(Settings(evaluation=EvaluationSettings(capacities=(1, "1/2")))).evaluation.capacities
    [1, 0.5]
    >>> as_in_recipe(Settings(devices=DeviceSettings(rates={1: 4e9, 0.5: 2e9}))).devices.rates
    {'1': 4000000000.0, '0.5': 2000000000.0}
    """
    found: Settings = _listed(settings)
    return found


def warn_of_dealing(settings: Settings, data: Data) -> None:
    """Warn where data says whose each sample is, and nobody said how clients share it."""
    if data.train.users is not None and settings.data.partition == Settings().data.partition:
        warnings.warn(
            f"the data says whose each sample is, but data.partition is '{settings.data.partition}', which deals all"
            " samples anew: set it to 'natural' to leave them where they are",
            stacklevel=4,
        )


def warn_of_idle(settings: Settings, capacities: Capacities) -> None:
    """Warn where a setting names a capacity that no device has, which does nothing.

    Rates and bandwidths may name more than there are, unless "all" takes the place of what is not named.
    """
    devices, there = settings.devices, capacities.enrolled()
    named = {"excluded": {f"{value:g}": value for value in devices.excluded}}
    for name in ("rates", "bandwidth"):
        if EVERYBODY in (table := getattr(devices, name)):
            named[name] = {text: parse_capacity(text) for text in table if text != EVERYBODY}
    if there != (1.0,):  # as of yardsticks that give all devices the whole model
        of = {text: parse_capacity(text) for text in devices.profiles}
        named["profiles"] = {text: value for text, value in of.items() if value not in settings.evaluation.capacities}
    has = ", ".join(f"{value:g}" for value in there)
    for name, values in named.items():
        if idle := [text for text, value in values.items() if value not in there]:
            message = f"devices.{name} names {', '.join(idle)}, which no device has: their capacities are {has}"
            warnings.warn(message, stacklevel=4)


def without_name(settings: Settings, **given: Any) -> dict[str, str]:
    """What of the things given these settings do not name, with the name each has in its program."""
    found = {name: _title(thing) for name, thing in given.items() if thing is not None}
    for name, wanted in (("method", settings.method.name), ("objective", settings.objective.name)):
        module, _, own = wanted.partition(":")
        if module in (UNNAMED, "__main__"):  # which is another module for every program
            found[name] = own
    return found


def read_given(config: Path) -> dict[str, str]:
    """What the run of this config.toml was given; nothing where it does not say."""
    try:
        return given_in(tomllib.loads(config.read_text(encoding="utf-8")))
    except (OSError, ValueError):  # what is wrong with it, who reads the settings says
        return {}


def given_in(document: Mapping[str, Any]) -> dict[str, str]:
    """What the run of a parsed config.toml was given."""
    found = document.get(GIVEN, {})
    if not isinstance(found, Mapping) or not found.keys() <= NAMED_BY.keys():
        raise OptionError(
            f"{GIVEN} is where a run says what it was given in Python: a table of {', '.join(NAMED_BY)}, not {found!r}"
        )
    return {name: str(title) for name, title in found.items()}


def refuse_given(document: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> None:
    """Refuse the config of a run that was given something in Python, unless changes name all of it."""
    given = {name: title for name, title in given_in(document).items() if not _is_named(name, changes)}
    if given:
        ways = ", ".join(NAMED_BY[name] for name in given)
        raise OptionError(
            f"{describe_given(given)}, and its settings do not say what only that program has: run it there, or name it"
            f" in a recipe or with --set: {ways}"
        )


def describe_given(given: Mapping[str, str]) -> str:
    """What a run was given, as the beginning of a sentence.

    >>> describe_given({"model": "Net", "data": "tensors"})
    'the model (Net) and data (tensors) of this run were given in Python'
    """
    listed = " and ".join(f"{name} ({title})" for name, title in given.items())
    return f"the {listed.replace(' and ', ', ', len(given) - 2)} of this run {_were(given)} given in Python"


def _were(given: Mapping[str, str]) -> str:
    return "was" if len(given) == 1 and not {"models", "data"} & given.keys() else "were"


def _is_named(name: str, changes: Sequence[Mapping[str, Any]]) -> bool:
    section, _, key = NAMED_BY[name].partition("=")[0].partition(".")
    return any(section in change and (not key or key in change[section]) for change in changes)


def _title(thing: Any) -> str:
    """The name of a thing: its own, or that of its class; of several, all."""
    if isinstance(thing, Mapping):
        return ", ".join(_title(each) for each in thing.values())
    return type(thing).__name__ if isinstance(thing, nn.Module) else str(thing.name)


def _listed(value: Any) -> Any:
    """A setting, or a record of some, with lists in place of tuples, in tables too, and with shares as numbers."""
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{part.name: _setting(part, getattr(value, part.name)) for part in fields(value)})
    if isinstance(value, Mapping):
        return {name: _listed(each) for name, each in value.items()}
    return [_listed(each) for each in value] if isinstance(value, (list, tuple)) else value


def _setting(part: Field[Any], value: Any) -> Any:
    """One setting of a record; text for `devices.capacities` is a mix, and stays. Tables go by text."""
    found = _listed(value)
    if isinstance(found, dict):
        texts = [str(name) if isinstance(name, Real) else name for name in found]
        if twice := [name for name in texts if texts.count(name) > 1]:
            raise OptionError(f"{part.name} names '{twice[0]}' twice, as text and as a number")
        found = dict(zip(texts, found.values(), strict=True))
    if not part.metadata.get("share"):
        return found
    if isinstance(found, list):
        return [_share(each) for each in found]
    return _share(found) if isinstance(part.default, float) else found


def _share(value: Any) -> Any:
    """A width that is written as text as its number; what is none stays, and is refused with the setting's name."""
    try:
        return read_capacity(value) if isinstance(value, str) else value
    except CapacityError:
        return value


def _kind(thing: object) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"a {type(thing).__name__}"
