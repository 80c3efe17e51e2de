"""The table of what trains what (docs/support.md): its columns, its tasks, and every answer.

An engine joins it with a line in `ENGINES_ASKED`, a property of runs with a line in `PROPERTIES`, and
`tests/contracts/test_support.py` then asks how its yes is shown.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from fedwidth.engines.packed.limits import why_not_pack
from fedwidth.engines.support import ENGINES, why_not_support
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.methods import Method, methods
from fedwidth.methods.lookup.single_updates import why_not_private, why_not_robust
from fedwidth.training.client import Trainer
from objective_runs import KINDS, settings

TASKS = {
    "classification": ["model.name=own_objective:Plain", "data.name=own_data:in_memory"],
    "next-word": [
        "model.name=own_objective:NextWord",
        "data.name=synthetic_text",
        "data.options={users=12,words=30,length=5}",
    ],
    "tagging": KINDS["token classification"],
    "regression": KINDS["regression"],
    "multi-label": KINDS["multi-label"],
    "segmentation": KINDS["segmentation"],
    "own objective": KINDS["own objective"],
}
"""A run for every task."""

SHORT = ["rounds=1", "data.clients=4", "devices.per_round=2", "training.epochs=1", "evaluation.capacities=[]"]


def run_of(method: str, task: str, *changes: str) -> Experiment:
    """A small run of a method for a task."""
    return Experiment(settings(*TASKS[task], *SHORT, f"method.name={method}", *changes))


def _packed(trainer: Trainer, engine: str) -> str | None:
    there = replace(trainer, settings=replace(trainer.settings, engine=engine))
    return why_not_pack([there, there])


ENGINES_ASKED: dict[str, Callable[[Trainer], str | None]] = {
    **{engine: partial(why_not_support, engine=engine) for engine in ENGINES},
    **{f"{engine} --packed": partial(_packed, engine=engine) for engine in ("vectorised", "cuda")},
}
"""Ways to train, and what is asked of every method and task: the reason why not, or None."""

METHODS_ASKED: dict[str, Callable[[Method], str | None]] = {"private": why_not_private, "robust": why_not_robust}
"""What depends on the method alone, and how it is asked."""

TWO_OF_EACH = ["devices.per_round=4", "devices.capacities=[1,1,0.5,0.5]", "server.label_rows=false"]
"""A round in which every part of the model is held by two clients."""

PROPERTIES: dict[str, tuple[list[str], list[str]]] = {
    "secure sums": (["secure.enabled=true", "secure.min_clients=2", *TWO_OF_EACH], TWO_OF_EACH),
    "clip, screen": (["server.clip=1e6", "server.screen=true"], []),
}
"""What a run may have beside its engine: the settings that ask for it, and those of a run that must end alike."""

COLUMNS = [*ENGINES_ASKED, *METHODS_ASKED, *PROPERTIES]


@cache
def support(method: str, task: str) -> dict[str, str | None]:
    """What every column answers for a method and a task: the reason why not, or None for yes."""
    try:
        trainer = run_of(method, task).trainer
    except OptionError as error:  # refused whatever trains it
        return dict.fromkeys(COLUMNS, str(error).partition(": choose another")[0])
    found = {column: why_not(trainer) for column, why_not in ENGINES_ASKED.items()}
    found |= {column: why_not(trainer.method) for column, why_not in METHODS_ASKED.items()}
    return found | {column: _refused(method, task, asked) for column, (asked, _) in PROPERTIES.items()}


def _refused(method: str, task: str, changes: list[str]) -> str | None:
    try:
        with warnings.catch_warnings(action="ignore"):
            run_of(method, task, *changes)
    except OptionError as error:
        return str(error)
    return None


def pairs(every: bool) -> list[tuple[str, str]]:
    """All methods with all tasks; or each method with one of them, and one that has no "no" with all."""
    names, tasks = sorted(methods()), list(TASKS)
    if every:
        return [(method, task) for method in names for task in tasks]
    found = [(method, tasks[number % len(tasks)]) for number, method in enumerate(names)]
    return found + [("fedrolex", task) for task in tasks if ("fedrolex", task) not in found]
