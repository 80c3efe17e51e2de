"""Models of several runs that answer together: what devices reach with models of their own, trained apart.

`python -m reproduction.apart OUT RUN RUN …` takes finished runs with one split of one data set (the same seed), and
adds to a JSON file what each model scores, and what those score together that validation samples choose: the measure of
`evaluation.capacities` for widths of one model, so that both can be compared (docs/benchmark/parts.md).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fedwidth
from fedwidth.config.read import read_config
from fedwidth.data import Split
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.evaluation.scores import score, score_together
from fedwidth.files import write_whole
from fedwidth.models.together import choose_together
from fedwidth.objectives import CLASSIFICATION
from fedwidth.reproduce.table_runs import without_root
from fedwidth.run.cache import Cache
from fedwidth.run.folder import CONFIG


def measure(folders: Sequence[Path], device: torch.device) -> dict[str, Any]:
    """Accuracies in percent, of each model and of those together that validation samples choose."""
    for folder in folders:
        if not (folder / "summary.json").exists():
            raise OptionError(f"{folder} holds no finished run: it has no summary.json")
    settings = [read_config(folder / CONFIG) for folder in folders]
    first, cache = settings[0], Cache()
    if any((each.seed, each.data) != (first.seed, without_root(first).data) for each in map(without_root, settings)):
        raise OptionError("models answer together only where their runs have one seed and one split of one data set")
    data, held = cache.data(first).to(device), cache.partition(first).validation
    if not len(held):
        raise OptionError("the widths that answer together are chosen by validation samples: data.validation is 0")
    asked: dict[str, tuple[Split, Tensor | None]] = {"validation": (data.train, held), "test": (data.test, None)}
    answers = {}
    for name, (split, samples) in asked.items():
        models = (fedwidth.load(folder).to(device) for folder in folders)
        answers[name] = [score(model, data, split, first.evaluation, device, samples)[1].cpu() for model in models]

    def accuracy(name: str, numbers: Sequence[int]) -> float:
        return 100 * score_together([answers[name][number] for number in numbers], CLASSIFICATION.metric, *asked[name])

    chosen = choose_together(len(folders), lambda numbers: accuracy("validation", numbers))
    return {
        "seed": first.seed,
        "widths": [each.model.width for each in settings],
        "each": [round(accuracy("test", [number]), 2) for number in range(len(folders))],
        "all": round(accuracy("test", range(len(folders))), 2),
        "chosen_widths": [settings[number].model.width for number in chosen],
        "chosen": round(accuracy("test", chosen), 2),
    }


def main(*arguments: str) -> None:
    """Add one measurement to the list that a file holds, which has each but once."""
    if len(arguments) < 3:
        raise OptionError("name a JSON file for the numbers, and at least two runs whose models are to answer together")
    out, *folders = map(Path, arguments)
    known = read_list(out)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = measure(folders, device)
    write_whole(out, json.dumps([*(each for each in known if each != found), found], indent=1) + "\n")


def read_list(path: Path) -> list[Any]:
    """The measurements that a file holds; none where there is no file yet."""
    try:
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    except (OSError, ValueError) as error:
        raise OptionError(f"{path} cannot be read as JSON ({error})") from None
    if not isinstance(known, list):
        raise OptionError(f"{path} must hold a list of measurements")
    return known


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except FedwidthError as error:
        sys.exit(str(error))
