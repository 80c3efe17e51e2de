"""Reading settings: from a recipe file, a packaged recipe or text, with changes from the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedwidth.config.check import check_settings
from fedwidth.config.document import change_all
from fedwidth.config.given import refuse_given
from fedwidth.config.recipe import Recipe, read_recipe
from fedwidth.config.schema import Key, keys
from fedwidth.errors import OptionError, unknown
from fedwidth.settings import Settings


def read_settings(
    source: str | Path,
    overrides: Sequence[str] = (),
    *,
    only: str | Sequence[str] = (),
    main: bool = False,
    defaults: Sequence[str] = (),
) -> Recipe:
    """Read a recipe: a file (*.toml), the name of a packaged recipe, or TOML text.

    `overrides` are `key=value` texts, made to each of its runs; values are TOML, and bare words are text. `only` takes
    the runs with this label, or these, alone (see `Recipe.only`), and `main` the main run (or the one that `only`
    names), so that a change need not make sense for the others. `defaults`, written like `overrides`, hold where
    neither these nor the recipe say anything.

    >>> recipe = read_settings('rounds = 20', ["training.lr=0.5", "method.name=heterofl"])
    >>> recipe.main.rounds, recipe.main.training.lr, recipe.main.method.name
    (20, 0.5, 'heterofl')
    """
    document = change_all({}, [*map(parse_override, defaults), _parse(source)])
    changes = [parse_override(text) for text in overrides]
    refuse_given(document, changes)
    labels = [only] if isinstance(only, str) else only
    recipe = read_recipe(document, changes, only=[label for label in labels if label], main=main)
    for run in recipe.runs:
        try:
            check_settings(run.settings)
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
