"""Models of several runs that answer together: one of each width, say, each trained apart by all who can hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fedwidth.config.given import read_given
from fedwidth.config.read import read_config
from fedwidth.data import Data, Split
from fedwidth.errors import OptionError, StateError
from fedwidth.evaluation.scores import has_one_label, score, score_together
from fedwidth.export.load import refuse_without, take
from fedwidth.export.wanted import BY_CLASSES, settings_of
from fedwidth.models.together import Together, choose_together
from fedwidth.objectives import objective_of
from fedwidth.run.cache import Cache
from fedwidth.run.folder import CONFIG, find_run_folders

Run = str | Path
DIFFER = ("kind", "classes", "inputs", "targets")
"""What of their data models that answer together must agree in."""


@dataclass(frozen=True)
class Scored:
    """What some of several models score together; one of them by itself."""

    numbers: tuple[int, ...]
    """Which of the models, by their places."""
    validation: float
    test: float | None
    """None where one of the runs leaves its test samples alone (`evaluation.test`)."""


@dataclass(frozen=True)
class Measured:
    """What models of several runs score: each of them, all together, and those that validation samples choose."""

    runs: tuple[str, ...]
    widths: tuple[float, ...]
    """Of the server's models, as shares of the model at full width."""
    each: tuple[Scored, ...]
    all: Scored
    chosen: Scored


def load_together(runs: Sequence[Run], *, model: nn.Module | None = None, data: Data | None = None) -> nn.Module:
    """The trained models of several runs as one, which answers with the mean of their probabilities of each class."""
    if not runs:
        raise OptionError("no run is given: name the folders of those whose models answer together")
    found = [take(run, model=model, data=data) for run in runs]
    first = found[0]
    for run, other in zip(runs, found, strict=True):
        if not other.objective.labelled:
            raise OptionError(f"{BY_CLASSES}, which those of {run} do not give")
        if differing := [name for name in DIFFER if other.facts.get(name) != first.facts.get(name)]:
            raise OptionError(
                f"{runs[0]} and {run} cannot answer together: their data differ in {', '.join(differing)}"
            )
    return Together([each.model for each in found], first.objective.output).eval() if len(found) > 1 else first.model


def find_by_seed(folders: Sequence[Run]) -> dict[int, list[Path]]:
    """The runs that answer together, by seed: of each folder one, which is a run itself or holds one for every seed."""
    found: list[dict[int, Path]] = []
    for folder in map(Path, folders):
        inner = [folder] if (folder / CONFIG).is_file() else list(find_run_folders(folder))
        if not inner:
            settings_of(folder)  # says that there is no run
        by_seed = {read_config(each / CONFIG).seed: each for each in inner}
        if len(by_seed) < len(inner):
            raise OptionError(
                f"{folder} holds several runs of one seed: name a folder of one run, or of its seeds alone"
            )
        found.append(by_seed)
    seeds = sorted(found[0])
    for name, by_seed in zip(folders, found, strict=True):
        if sorted(by_seed) != seeds:
            here, first = (", ".join(map(str, sorted(some))) for some in (by_seed, seeds))
            raise OptionError(f"{name} has runs with the seeds {here}, {folders[0]} with {first}")
    return {seed: [by_seed[seed] for by_seed in found] for seed in seeds}


def measure_together(runs: Sequence[Run], *, root: str | None = None) -> Measured:
    """What the trained models of several runs score, each alone and together; validation samples choose which do.

    The runs must have one seed and one split of one data set, with samples held out (`data.validation`), which none of
    them has trained on. `root` is the folder of the data set, where it is not the first run's.
    """
    folders = [Path(run) for run in runs]
    for folder in folders:
        settings_of(folder)  # says what is there in place of a run
        refuse_without(read_given(folder / CONFIG), "data", str(folder))
        if not (folder / "summary.json").exists():
            raise StateError(f"{folder} holds no finished run: it has no summary.json")
    settings = [read_config(folder / CONFIG) for folder in folders]
    first, cache = settings[0], Cache()
    alike = replace(first.data, root="")
    if any((each.seed, replace(each.data, root="")) != (first.seed, alike) for each in settings):
        raise OptionError("models answer together only where their runs have one seed and one split of one data set")
    source = first if root is None else replace(first, data=replace(first.data, root=root))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data, held = cache.data(source).to(device), cache.partition(source).validation
    if not len(held):
        raise OptionError("the models that answer together are chosen by validation samples: data.validation is 0")
    objective = objective_of(first.objective, data)
    if not has_one_label(objective, data.train):
        raise OptionError(f"{BY_CLASSES}: only those of one class for each sample are measured so")
    asked: dict[str, tuple[Split, Tensor | None]] = {"validation": (data.train, held)}
    if all(each.evaluation.test for each in settings):
        asked["test"] = (data.test, None)
    models = [take(folder).model.to(device) for folder in folders]
    answers = {
        name: [
            score(model, data, split, first.evaluation, device, samples, objective=objective)[1].cpu()
            for model in models
        ]
        for name, (split, samples) in asked.items()
    }

    def reached(name: str, numbers: Sequence[int]) -> float:
        return score_together([answers[name][number] for number in numbers], objective.metric, *asked[name])

    def scored(numbers: Sequence[int]) -> Scored:
        test = reached("test", numbers) if "test" in asked else None
        return Scored(tuple(numbers), reached("validation", numbers), test)

    return Measured(
        tuple(map(str, runs)),
        tuple(each.model.width for each in settings),
        tuple(scored([number]) for number in range(len(runs))),
        scored(range(len(runs))),
        scored(choose_together(len(runs), lambda numbers: reached("validation", numbers))),
    )
