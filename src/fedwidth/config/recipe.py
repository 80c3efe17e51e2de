"""A recipe: one run, the runs shown beside it, and the published numbers they answer to.

A recipe file holds the settings of its main run, and besides them

    title = "…"           one line about the whole
    yardsticks = true     its runs are measured with their yardsticks too (`fedwidth.analysis.yardsticks`)
    label = "fedrolex"    the main run's label (else its method's name), for `--only`
    [paper]               the published number of the main run, see `Paper`
    [[compare]]           further runs: a `label`, a `[compare.paper]`, and the settings that differ
    [grid]                or a whole published table: every row crossed with every column (`grid.py`)

A run that names another method, model, data set or partition starts from that one's default options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from fedwidth.config.document import Document, change_all, overlay, tables_of, text_of
from fedwidth.config.given import GIVEN
from fedwidth.config.grid import cells_of
from fedwidth.config.method_settings import check_public_given, method_of, with_needs, with_public
from fedwidth.config.private_settings import with_privacy
from fedwidth.config.schema import build, keys, shown, unknown_key
from fedwidth.config.secure_settings import with_secure
from fedwidth.devices.narrower import as_shares_of_server
from fedwidth.errors import OptionError, unknown
from fedwidth.objectives import objective_of
from fedwidth.settings import Settings, key

RECIPE_KEYS = ("title", "label", "yardsticks", "paper", "compare", "grid")
"""What a recipe file holds besides settings."""


@dataclass(frozen=True)
class Paper:
    """The published number a run answers to: accuracies in percent, with their spread over seeds."""

    table: str = key("", "where the number stands")
    number: float | None = key(None, "global accuracy")
    spread: float | None = key(None, "its spread")
    local: float | None = key(None, "local accuracy")
    local_spread: float | None = key(None, "its spread")
    best: bool = key(False, "the number is the best over rounds, not the last")
    note: str = key("", "what to know about it, or why there is none")

    def __str__(self) -> str:
        if self.number is None:
            return self.table
        spread = "" if self.spread is None else f" ± {self.spread:.2f}"
        return f"{self.number:.2f}{spread} ({self.table})"


@dataclass(frozen=True)
class Variant:
    """One run of a recipe."""

    label: str
    settings: Settings
    paper: Paper


@dataclass(frozen=True)
class Recipe:
    """A main run and the runs to show beside it."""

    title: str
    runs: tuple[Variant, ...]
    yardsticks: bool = False
    """Whether they are to be measured with their yardsticks."""

    @property
    def main(self) -> Settings:
        """The settings of the main run: the first."""
        return self.runs[0].settings

    @property
    def label(self) -> str:
        """The label of the main run."""
        return self.runs[0].label

    @property
    def paper(self) -> Paper:
        """The published number of the main run."""
        return self.runs[0].paper

    @property
    def compare(self) -> tuple[Variant, ...]:
        """The other runs."""
        return self.runs[1:]

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of every run."""
        return tuple(run.label for run in self.runs)

    def only(self, *labels: str) -> Recipe:
        """The recipe with these runs alone, in its own order; `*` stands for any characters: `a0-e1/*/fedbrb`."""
        chosen = _matching(self.labels, labels)
        return replace(self, runs=tuple(run for run in self.runs if run.label in chosen))


def read_recipe(
    document: Document, changes: Sequence[Document] = (), *, only: Sequence[str] = (), main: bool = False
) -> Recipe:
    """The recipe of a parsed file; `changes` (from `--set`) are made to each of its runs.

    With `only`, it is the runs with these labels (see `Recipe.only`), with `main` the main run alone: changes need not
    make sense for the others, which are not read.
    """
    base = {name: value for name, value in document.items() if name not in (*RECIPE_KEYS, GIVEN)}
    title, yardsticks = text_of(document, "title", ""), document.get("yardsticks", False)
    paper = build(Paper, document.get("paper", {}), "paper.")
    names = [part.name for part in fields(Settings)]
    for name in base:
        if name not in names:
            raise unknown_key(name, [*names, *RECIPE_KEYS])
    if not isinstance(yardsticks, bool):
        raise OptionError(f"yardsticks must be true or false, not {shown(yardsticks)}")
    build(Settings, change_all(base, changes))  # a value of the wrong type is wrong in all of them
    entries = _entries(document, base, changes)
    labels = [label for label, _ in entries]
    if main and not only:
        if "grid" in document:
            raise OptionError(f"a recipe with [grid] has no main run: name one with --only, such as '{labels[0]}'")
        entries = entries[:1]
    elif twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise OptionError(f"a recipe needs a different label for every run, but '{twice[0]}' occurs twice")
    elif only:
        chosen = _matching(labels, only)
        entries = [entry for entry in entries if entry[0] in chosen]
        if main and len(entries) > 1:
            raise OptionError(
                f"--only '{', '.join(only)}' stands for {len(entries)} runs of the recipe, and here for one alone"
            )
    runs = [_variant(base, *entry, changes, paper) for entry in entries]
    settings = all_with_public([run.settings for run in runs])
    runs = [replace(run, settings=own) for run, own in zip(runs, settings, strict=True)]
    return Recipe(title, _told_apart(runs), yardsticks)


def all_with_public(runs: Sequence[Settings]) -> list[Settings]:
    """The runs of one table: where one needs data of the server's own and nobody said how much, all give up the same
    share of their training data."""
    return [with_public(run) for run in runs] if any(map(_needs_public, runs)) else list(runs)


def _needs_public(settings: Settings) -> bool:
    try:
        return method_of(settings).public
    except OptionError:  # what is wrong with it is said once the settings are checked
        return False


def _entries(document: Document, base: Document, changes: Sequence[Document]) -> list[tuple[str, Document | None]]:
    """The label of each run and what sets it apart; the main run, where there is one, first and with None."""
    if "grid" in document:
        if "compare" in document:
            raise OptionError("a recipe holds [grid] or [[compare]], not both")
        return [(_label(entry), entry) for entry in cells_of(document["grid"])]
    method = change_all(base, changes).get("method", {}).get("name", keys()["method.name"].default)
    main = text_of(document, "label", "") or method
    return [(main, None), *((_label(entry), entry) for entry in tables_of(document, "compare"))]


def _label(entry: Document) -> str:
    label = text_of(entry, "label", "")
    if not label:
        raise OptionError("every [[compare]], row and column of a recipe needs a label")
    return label


def _matching(labels: Sequence[str], patterns: Sequence[str]) -> set[str]:
    """The labels that one of the patterns stands for."""
    for pattern in patterns:
        if not any(fnmatchcase(label, pattern) for label in labels):
            raise unknown("run", pattern, labels, also="* stands for any characters")
    return {label for label in labels if any(fnmatchcase(label, pattern) for pattern in patterns)}


def _variant(base: Document, label: str, entry: Document | None, changes: Sequence[Document], main: Paper) -> Variant:
    """The main run, or a further one: the base with the entry's settings; name and published number are its own."""
    if entry is None:
        settings = _changed(base, changes)
        return Variant(label, settings if settings.answers else replace(settings, answers=str(main)), main)
    own = {"name": label, "answers": ""} | {k: value for k, value in entry.items() if k not in ("label", "paper")}
    published = entry.get("paper", {})
    try:
        shared = {"table": main.table, "best": main.best}
        paper = build(Paper, {**shared, **published} if isinstance(published, Mapping) else published, "paper.")
        settings = _changed(overlay(base, own), changes)
    except OptionError as error:
        raise OptionError(f"run '{label}': {error}") from None
    return Variant(label, settings if settings.answers else replace(settings, answers=str(paper)), paper)


def _changed(document: Document, changes: Sequence[Document]) -> Settings:
    """The settings of a document with changes. A name that was given for another method does not stay."""
    after = change_all(document, changes)
    settings = _settings(after)
    if any("name" in change for change in changes) or all(
        _names(document, section) == _names(after, section) for section in ("method", "local")
    ):
        return settings
    try:
        return replace(settings, name=method_of(settings).title)
    except OptionError:  # what is wrong with it is said once the settings are checked
        return settings


def _names(document: Document, section: str) -> Any:
    """The method or local rule that a document names."""
    return document.get(section, {}).get("name", keys()[f"{section}.name"].default)


def _told_apart(runs: Sequence[Variant]) -> tuple[Variant, ...]:
    """The runs, with their labels added to names that several of them have."""
    names = [run.settings.name for run in runs]
    twice = {name for name in names if name and names.count(name) > 1}
    return tuple(
        replace(run, settings=replace(run.settings, name=f"{run.settings.name} ({run.label})"))
        if run.settings.name in twice
        else run
        for run in runs
    )


def _settings(document: Document) -> Settings:
    """The settings of a document, with those its method and its objective need where it says nothing."""
    settings = with_privacy(with_secure(build(Settings, document), document), document)
    try:
        method, objective = method_of(settings), objective_of(settings.objective)
    except OptionError:  # what is wrong with it is said once the settings are checked
        return settings
    check_public_given(settings, method, document)
    settings = as_shares_of_server(settings, ranks=bool(method.adapters))
    return with_needs(with_needs(settings, method, document), objective, document)
