"""Reading, checking, writing and explaining the settings of a run."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedwidth.config.influence import identity, settings_hash
from fedwidth.config.method_settings import check_exponent, method_of
from fedwidth.config.recipe import PARTS, Paper, Recipe, Variant, read_recipe
from fedwidth.config.schema import Key, keys, sections
from fedwidth.data.load import options_of
from fedwidth.data.partition import PARTITIONS, partition_options
from fedwidth.devices.capacity import Capacities, describe_mix
from fedwidth.devices.time import Paces
from fedwidth.errors import OptionError, unknown
from fedwidth.methods import Method, method
from fedwidth.models.catalogue import FACTORIES
from fedwidth.settings import Settings

__all__ = [
    "Paper",
    "Recipe",
    "Variant",
    "check",
    "explain",
    "identity",
    "parse_override",
    "read_config",
    "read_settings",
    "recipe_names",
    "settings_hash",
    "settings_toml",
]

_DEVICE = re.compile(r"cpu|cuda(:\d+)?", re.ASCII)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def read_settings(source: str | Path, overrides: Sequence[str] = (), *, only: str = "", main: bool = False) -> Recipe:
    """Read a recipe: a file (*.toml), the name of a packaged recipe, or TOML text.

    `overrides` are `key=value` texts, made to each of its runs; values are TOML, and bare words are text. `only` takes
    the runs with this label alone (see `Recipe.only`), and `main` the main run (or the one that `only` names), so that
    a change need not make sense for the others.

    >>> recipe = read_settings('rounds = 20', ["training.lr=0.5", "method.name=heterofl"])
    >>> recipe.main.rounds, recipe.main.training.lr, recipe.main.method.name
    (20, 0.5, 'heterofl')
    """
    recipe = read_recipe(_parse(source), [parse_override(text) for text in overrides], only=only, main=main)
    for run in recipe.runs:
        try:
            check(run.settings)
        except OptionError as error:
            if run.settings is recipe.main:
                raise
            raise OptionError(f"run '{run.label}': {error}") from None
    return recipe


def read_config(path: Path) -> Settings:
    """The settings a run was started with, as its folder holds them, whether they can be used here or not."""
    return read_recipe(_parse(path)).main


def parse_override(text: str) -> dict[str, Any]:
    """The change that `key=value` stands for; the value is TOML, and what is not TOML is taken as text.

    >>> parse_override("training.optimiser=adam"), parse_override("training.lr=0.1")
    ({'training': {'optimiser': 'adam'}}, {'training': {'lr': 0.1}})
    """
    name, equals, written = (part.strip() for part in text.partition("="))
    if not equals or not all(name.split(".")):
        raise OptionError(f"--set takes key=value, e.g. training.lr=0.1, not '{text}'")
    try:
        parsed = tomllib.loads(f"value = {written}")
    except (tomllib.TOMLDecodeError, RecursionError):
        parsed = {}
    value: Any = parsed["value"] if set(parsed) == {"value"} else written
    if name in keys() and _is_text(keys()[name], value) and not isinstance(value, str):
        value = written  # a capacity mix such as 0.25, or a name that happens to be a number
    for part in reversed(name.split(".")):
        value = {part: value}
    change: dict[str, Any] = value
    return change


def _is_text(key: Key, value: Any) -> bool:
    return key.type is str or (key.type == str | list[float] and not isinstance(value, list))


def recipe_names() -> list[str]:
    """The names of the packaged recipes, sorted."""
    return sorted(_packaged())


def check(settings: Settings, method: Method | None = None) -> None:
    """What needs no data to be seen as wrong; `method` is the one that trains, where the settings need not find it."""
    milestones = settings.training.milestones
    if any(later <= sooner for sooner, later in zip([0, *milestones], milestones, strict=False)):
        raise OptionError(f"training.milestones must be rounds in rising order, not {milestones}")
    if settings.training.schedule == "multistep" and not milestones:
        raise OptionError("training.schedule is multistep, so training.milestones must name at least one round")
    if settings.devices.per_round > settings.data.clients:
        raise OptionError(
            f"devices.per_round must be at most data.clients ({settings.data.clients}),"
            f" not {settings.devices.per_round}"
        )
    if not settings.data.validation < 1:
        raise OptionError(f"data.validation must be a share from 0 to below 1, not {settings.data.validation:g}")
    if not settings.evaluation.test and not settings.data.validation:
        raise OptionError("evaluation.test is false, so data.validation must be above 0: nothing would be measured")
    if settings.model.fresh and not settings.model.weights:
        raise OptionError("model.fresh names tensors that are not read from model.weights, which is empty")
    if not _DEVICE.fullmatch(settings.device):
        raise OptionError(f"device must be cpu, cuda or cuda:N, not '{settings.device}'")
    check_devices(settings, settings.data.clients)
    _check_names(settings)
    if method is None:
        _check_method(settings)


def check_devices(settings: Settings, clients: int) -> Capacities:
    """The capacities of so many clients, checked with what the settings do with them."""
    devices = settings.devices
    try:
        capacities = Capacities.parse(devices.capacities)
    except OptionError as error:
        raise OptionError(f"devices.capacities: {error}") from None
    listed = capacities.by_client
    if listed is not None and len(listed) != clients:
        raise OptionError(
            f"devices.capacities lists {len(listed)} capacities for {clients} clients: give one for each client"
        )
    if not capacities.enrolled(devices.excluded):
        raise OptionError(f"devices.excluded leaves no capacity of '{describe_mix(devices.capacities)}'")
    anew, own = "devices.dynamic draws them anew each round", "devices.capacities lists each client's own"
    if devices.dynamic and listed is not None:
        raise OptionError(f"{own} capacity, but {anew}: choose one")
    if devices.correlate != "none" and (devices.dynamic or listed is not None):
        raise OptionError(f"devices.correlate deals fixed capacities, but {anew if devices.dynamic else own}")
    if not devices.correlate_strength <= 1:
        raise OptionError(f"devices.correlate_strength must be from 0 to 1, not {devices.correlate_strength:g}")
    if not devices.dropout < 1:
        raise OptionError(f"devices.dropout must be a probability from 0 to below 1, not {devices.dropout:g}")
    Paces.of(devices, capacities.enrolled(devices.excluded))
    return capacities


def _check_names(settings: Settings) -> None:
    """Names of models, data sets and partitions, and of their options (a model's are known to its factory)."""
    data = settings.data
    if ":" not in settings.model.name and settings.model.name not in FACTORIES:
        raise unknown("model", settings.model.name, [*FACTORIES, "package.module:factory"])
    _refuse_others("partition", [data.partition], PARTITIONS)
    _refuse_others(f"option of data set '{data.name}'", data.options, options_of(data.name))
    allowed = partition_options(data.partition)
    _refuse_others(f"option of partition '{data.partition}'", data.partition_options, allowed)


def _check_method(settings: Settings) -> None:
    """The names of method and local rule, and their options."""
    chosen = settings.method
    found = method(chosen.name, local=settings.local.name or None)
    kind = f"option of method '{chosen.name}'" + (f" with '{settings.local.name}'" if settings.local.name else "")
    _refuse_others(kind, [*chosen.options, *settings.local.options], found.options)
    check_exponent(settings, method_of(settings))  # which looks at the options' values too


def _refuse_others(kind: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    names = list(allowed)
    for name in given:
        if name not in names:
            raise unknown(kind, name, names)


def settings_toml(settings: Settings) -> str:
    """All settings as TOML; `read_settings` of it gives equal settings.

    >>> read_settings(settings_toml(Settings())).main == Settings()
    True
    """
    everything = asdict(settings)
    lines = [f"{name} = {_toml(name, value)}" for name, value in everything.items() if name not in sections()]
    for section in sections():
        lines += ["", f"[{section}]"]
        lines += [f"{name} = {_toml(f'{section}.{name}', value)}" for name, value in everything[section].items()]
    return "\n".join(lines) + "\n"


def explain() -> str:
    """Every setting with what is allowed, its default and its meaning."""
    lines = ["Settings of a run, for recipe files and `--set key=value`, with their defaults."]
    about, section = {"": "The run as a whole.", **sections()}, None
    for key in sorted(keys().values(), key=lambda key: "." in key.name):
        here = key.name.rpartition(".")[0]
        if here != section:
            section = here
            lines += ["", about[section]]
        lines += [f"  {key.name} = {_toml(key.name, key.default)}", f"      {key.help} ({key.expected})"]
    lines += ["", f"A recipe file may also hold {', '.join(PARTS)}: see docs/recipes.md."]
    return "\n".join(lines)


def _parse(source: str | Path) -> dict[str, Any]:
    packaged = _packaged()
    if isinstance(source, Path) or (source.endswith(".toml") and "\n" not in source):
        where, text = str(source), _read_file(Path(source))
    elif source in packaged:
        where, text = f"recipe {source}", packaged[source].read_text(encoding="utf-8")
    elif not source or "=" in source or "\n" in source:
        where, text = "the text", source
    else:
        raise unknown(
            "recipe", source, packaged, also="or give a file ending in .toml; `fedwidth run --recipes` lists all"
        )
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise OptionError(f"{where} is not valid TOML: {error}") from None


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise OptionError(f"cannot read the recipe file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OptionError(f"cannot read the recipe file {path}: it is not UTF-8 text") from None


def _packaged() -> dict[str, Traversable]:
    def walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
        for entry in folder.iterdir():
            if entry.is_dir():
                yield from walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".toml"):
                yield prefix + entry.name.removesuffix(".toml"), entry

    return dict(sorted(walk(files("fedwidth") / "recipes", "")))


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
