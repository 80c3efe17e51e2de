"""Which records are of a run that a recipe of the benchmark asks for: all its settings must be the recipe's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from fedwidth.analysis.experiment_key import MAY_DIFFER
from fedwidth.config.influence import experiment_of
from fedwidth.config.read import read_settings, recipe_names
from fedwidth.reproduce.records import Record

BENCHMARK = "benchmark/"
"""How the names of these recipes begin."""


def differences(record: Record, *, but: Collection[str] = ()) -> list[str]:
    """The settings, by dotted key, in which a record differs from the recipe's run of its label; none for recipes of
    others. Where and how precisely runs were made, and `but` these, does not count."""
    if not record.recipe.startswith(BENCHMARK) or record.recipe not in recipe_names():
        return []
    asked = _settings(record.recipe).get(record.label)
    if asked is None:
        return [f"the label {record.label}, which {record.recipe} does not have"]
    return differing(record.settings, asked, but=but)


def differing(one: Mapping[str, Any], other: Mapping[str, Any], *, but: Collection[str] = ()) -> list[str]:
    """The settings, by dotted key, that make two runs other experiments, as seeds do not; `but` these do not count."""
    here, there = (experiment_of(settings, without=(*MAY_DIFFER, *but)) for settings in (one, other))
    return sorted(key for key in here.keys() | there.keys() if here.get(key) != there.get(key))


def as_asked(records: Iterable[Record]) -> list[Record]:
    """The records without those that have a label of the benchmark's, but other settings than it stands for."""
    return [record for record in records if not differences(record)]


@cache
def _settings(recipe: str) -> Mapping[str, Mapping[str, Any]]:
    return {run.label: asdict(run.settings) for run in read_settings(recipe).runs}
