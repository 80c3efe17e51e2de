"""Models of several runs that answer together: one of each width, say, each trained apart by all who can hold it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.config.given import describe_given, read_given
from fedwidth.config.influence import ROUNDING, influences
from fedwidth.config.schema import shown
from fedwidth.data import Data
from fedwidth.data.stand_in import facts_of
from fedwidth.errors import OptionError, StateError
from fedwidth.evaluation.scores import choose_by_score, has_one_label, score, score_together
from fedwidth.export.load import Taken, take
from fedwidth.export.wanted import BY_CLASSES, settings_of
from fedwidth.gpu import with_precision
from fedwidth.models.together import Together
from fedwidth.objectives import objective_of
from fedwidth.objectives.metric import Measure
from fedwidth.objectives.output import logits_of
from fedwidth.run.cache import Cache
from fedwidth.run.folder import CONFIG, MODELS
from fedwidth.settings import Settings

READ = ("objective.", "data.name", "data.options")
"""How the names of the settings begin that say what models read and answer; they must be the same."""
SPLIT = ("seed", "objective.", "data.")
"""The same of the settings by which runs have common validation samples, which none of them has trained on."""
FACTS = ("kind", "classes", "inputs", "targets", "transform")
"""What the data of models that answer together must have in common."""


@dataclass(frozen=True)
class Scored:
    """What the models of some runs score if they answer together; of one run, what its model scores by itself."""

    runs: tuple[str, ...]
    widths: tuple[float, ...]
    """Of the server's models, as shares of the model at full width."""
    validation: float
    test: float | None
    """None where one of the runs leaves its test samples alone (`evaluation.test`)."""


@dataclass(frozen=True)
class Measured:
    """What models of several runs score: each of them, all together, and those that validation samples choose."""

    measure: Measure
    each: tuple[Scored, ...]
    all: Scored
    chosen: Scored


def take_several(
    runs: Sequence[str | Path],
    *,
    model: nn.Module | None = None,
    data: Data | None = None,
    prepare: Callable[[Taken], Taken] = lambda taken: taken,
) -> Taken:
    """The trained models of several runs as one, which answers with the mean of their probabilities of each class.

    Each is a whole one, which `prepare` may change before.
    """
    folders = [Path(run) for run in runs]
    if not folders:
        raise OptionError("no run is given: name the folders of those whose models answer together")
    found = [prepare(take(folder, model=model, data=data)) for folder in folders]
    first = found[0]
    for folder, other in zip(folders, found, strict=True):
        if not other.objective.labelled:
            raise OptionError(f"{BY_CLASSES}, which those of {folder} do not give")
        keys = READ if data is None else ("objective.",)
        _check_same(folders[0], first.settings, folder, other.settings, keys)
        if differing := _differing(first.facts, other.facts):
            raise OptionError(f"{folders[0]} and {folder} cannot answer together: their data differ in {differing}")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise OptionError("a run is named twice: name each run once, whose models are to answer together")
    return replace(
        first,
        model=Together([each.model for each in found], first.objective.output).eval(),
        objective=replace(first.objective, output=logits_of),  # together they give nothing but logits
        counts=None,
        several=tuple(found),
    )


def measure_together(folders: Sequence[str | Path], *, root: str | None = None) -> dict[int, Measured]:
    """What the trained models of several runs score, each alone and together, by seed.

    Each folder is a run, or holds one for every seed. Validation samples choose which models do well together, so runs
    need one split of one data set with some held out (`data.validation`). `root` is the folder of the data set, where
    it is not the runs'.
    """
    by_seed = _find_by_seed([Path(folder) for folder in folders])
    settings = {seed: _check_runs(runs) for seed, runs in by_seed.items()}
    cache = Cache()
    return {seed: _measure(runs, settings[seed], cache, root) for seed, runs in by_seed.items()}


def _find_by_seed(folders: Sequence[Path]) -> dict[int, list[Path]]:
    """The runs that answer together, by seed: of each folder one."""
    if len({folder.resolve() for folder in folders}) < max(2, len(folders)):
        raise OptionError("name at least two runs, each once, whose models are to answer together")
    found = [{settings_of(run).seed: run for run in _runs_in(folder)} for folder in folders]
    for folder, by_seed in zip(folders, found, strict=True):
        if by_seed.keys() != found[0].keys():
            here, first = (", ".join(map(str, sorted(some))) for some in (by_seed, found[0]))
            raise OptionError(f"{folder} has runs with the seeds {here}, {folders[0]} with {first}")
    return {seed: [by_seed[seed] for by_seed in found] for seed in sorted(found[0])}


def _runs_in(folder: Path) -> list[Path]:
    """The run that a folder is, or those of its seeds that lie in it."""
    inner = [] if (folder / CONFIG).is_file() else sorted(folder.glob(f"seed-*/{CONFIG}"))
    return [config.parent for config in inner] or [folder]


def _check_runs(runs: Sequence[Path]) -> list[Settings]:
    """The settings of finished runs whose models can be measured together."""
    settings = [settings_of(run) for run in runs]
    for run, its in zip(runs, settings, strict=True):
        if given := read_given(run / CONFIG):
            raise StateError(f"{run}: {describe_given(given)}; fedwidth.load([…]) gives the models, to measure them")
        if not (run / "summary.json").exists():
            raise StateError(f"{run} holds no finished run: it has no summary.json")
        if not its.data.validation:
            raise OptionError(f"validation samples choose which models answer together: data.validation of {run} is 0")
        _check_same(runs[0], settings[0], run, its, SPLIT)
    return settings


def _check_same(one: Path, settings: Settings, other: Path, others: Settings, keys: tuple[str, ...]) -> None:
    """Refuse runs that differ in settings whose names begin so."""
    first, second = (influences(asdict(each), without=ROUNDING) for each in (settings, others))
    for key in first:
        if key.startswith(keys) and first[key] != second.get(key):
            raise OptionError(
                f"{one} and {other} cannot answer together: {key} of the first is {shown(first[key])}, of the second"
                f" {shown(second.get(key))}"
            )


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The facts in which two data sets differ, as words; nothing where they fit the same models."""
    known = [name for name in FACTS if name in one and name in other]  # older runs say less
    said = [{name: json.dumps(facts[name], sort_keys=True) for name in known} for facts in (one, other)]  # as stored
    return ", ".join(name for name in known if said[0][name] != said[1][name])


def _measure(runs: Sequence[Path], settings: Sequence[Settings], cache: Cache, root: str | None) -> Measured:
    """What the models of runs with one seed score."""
    first = settings[0] if root is None else replace(settings[0], data=replace(settings[0].data, root=root))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data, held = cache.data(first), cache.partition(first).validation
    objective = objective_of(first.objective, data)
    if not has_one_label(objective, data.train):
        raise OptionError(f"{runs[0]}: only models that give one class for each sample are measured together")
    taken = [take(run, data=None if (run / MODELS).exists() else data) for run in runs]
    for run, its in zip(runs, taken, strict=True):
        if differing := _differing(its.facts, facts_of(data)):
            raise OptionError(f"the data that were found are not those of {run}: they differ in {differing}")
    placed = data.to(device)
    asked: dict[str, tuple[Any, Tensor | None]] = {"validation": (placed.train, held)}
    if all(each.evaluation.test for each in settings):
        asked["test"] = (placed.test, None)
    with with_precision(first.precision):
        answers = [
            {
                name: score(model, placed, split, its.evaluation, device, samples, objective=objective)[1].cpu()
                for name, (split, samples) in asked.items()
            }
            for model, its in ((each.model.to(device), each.settings) for each in taken)
        ]
    metric = objective.metric

    def scored(numbers: Sequence[int]) -> Scored:
        reached = {
            name: score_together([answers[number][name] for number in numbers], metric, *some)
            for name, some in asked.items()
        }
        names, widths = (str(runs[n]) for n in numbers), (settings[n].model.width for n in numbers)
        return Scored(tuple(names), tuple(widths), reached["validation"], reached.get("test"))

    chosen = choose_by_score([each["validation"] for each in answers], metric, *asked["validation"])
    every = range(len(runs))
    return Measured(metric.measure, tuple(scored([number]) for number in every), scored(every), scored(chosen))
