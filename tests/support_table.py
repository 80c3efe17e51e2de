"""The table of what trains what (docs/support.md): its columns, its tasks, and every answer.

A property of runs joins it with a line in `COLUMNS`, and `tests/contracts/test_support.py` then asks how its yes is
shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from fedwidth.engines.packed.limits import why_not_pack
from fedwidth.engines.support import ENGINES, why_not_support
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.methods import methods
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


COLUMNS: dict[str, Callable[[Trainer], str | None]] = {
    **{engine: partial(why_not_support, engine=engine) for engine in ENGINES},
    **{f"{engine} --packed": partial(_packed, engine=engine) for engine in ("vectorised", "cuda")},
    "private": lambda trainer: why_not_private(trainer.method),
    "robust": lambda trainer: why_not_robust(trainer.method),
}
"""What is asked of every method and task: the reason why not, or None."""


@cache
def support(method: str, task: str) -> dict[str, str | None]:
    """What every column answers for a method and a task: the reason why not, or None for yes."""
    try:
        trainer = run_of(method, task).trainer
    except OptionError as error:  # refused whatever trains it
        return dict.fromkeys(COLUMNS, str(error).partition(": choose another")[0])
    return {column: why_not(trainer) for column, why_not in COLUMNS.items()}


def pairs(every: bool) -> list[tuple[str, str]]:
    """All methods with all tasks, or so many that each of both is there."""
    names, tasks = sorted(methods()), list(TASKS)
    if every:
        return [(method, task) for method in names for task in tasks]
    return [(method, tasks[number % len(tasks)]) for number, method in enumerate(names)]
