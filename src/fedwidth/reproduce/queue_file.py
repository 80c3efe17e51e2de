"""results/queue.toml: the experiments that wait for a machine, in the order in which they are to be run.

set = ["device=cuda"]                        what every job is run with, unless it or the command says otherwise

[[job]]
name = "low-milestones"                      no other job has it; also names its file in results/queue
asks = "Does …?"                             what it is to find out, in one sentence
recipe = "fedrolex/table3-cifar10-low"       or a list of them
only = ["heterofl"]                          only the runs with these labels; without it all
set = ["training.milestones=[100, 150]"]     what differs, as --set takes it
seeds = [1]                                  without it those of the recipe
seconds = 70                                 how long it is expected to take
packed = false                               whether its runs train as one batch; "seeds": those of one row do
answer = "Confirmed: …"                      one sentence, once it has been run: confirmed, refuted or open
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from fedwidth.errors import FedwidthError, OptionError, unknown, whole_number
from fedwidth.reproduce.table_runs import SEEDS, Packed, TableRun, list_table_runs

FOLDER = "queue"
"""The folder, in that of the results, for records of experiments that no recipe has."""
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*", re.ASCII)


@dataclass(frozen=True)
class Job:
    """An experiment that waits in the queue: some runs of recipes, with what differs from them."""

    name: str
    asks: str
    recipes: tuple[str, ...]
    seconds: float
    only: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    packed: Packed = False
    answer: str = ""

    def runs(self, changes: Sequence[str], work: Path) -> list[TableRun]:
        """The runs of the job, with further `changes` made to each.

        A run that is another experiment than the recipe's is recorded under the name of the job, so that it is never
        taken for the recipe's.
        """
        find = partial(list_table_runs, self.recipes, only=self.only, seeds=self.seeds, work=work)
        try:
            plain, changed = find(changes=[]), find(changes=[*self.changes, *changes])
        except FedwidthError as error:
            raise type(error)(f"job '{self.name}' of the queue: {error}") from None
        pairs = zip(changed, plain, strict=True)
        return [run if run.key == as_is.key else self._own(run, work) for run, as_is in pairs]

    def _own(self, run: TableRun, work: Path) -> TableRun:
        """The run as one of this job, and not of the recipe."""
        table = f"{FOLDER}/{self.name}"
        label = run.label if len(self.recipes) == 1 else f"{run.table}/{run.label}"
        return replace(run, table=table, label=label, folder=work / table / run.folder.relative_to(work))


def read_queue(path: Path, only: Sequence[str] = ()) -> list[Job]:
    """The jobs of a queue in the order of the file, or those with these names (`*` stands for any characters)."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"cannot read the queue {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"the queue {path} is not valid TOML: {error}") from None
    tables, common = document.pop("job", []), _texts(document.pop("set", []), f"the queue {path}: set")
    if document or not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise OptionError(f"the queue {path} may have `set` and a list of [[job]] tables, and nothing else")
    jobs = [_read_job(table, number, common) for number, table in enumerate(tables, 1)]
    names = [job.name for job in jobs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise OptionError(f"every job of a queue needs its own name, but '{twice[0]}' occurs twice")
    for pattern in only:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise unknown("job", pattern, names, also="* stands for any characters")
    return [job for job in jobs if not only or any(fnmatchcase(job.name, each) for each in only)]


def _read_job(table: Mapping[str, Any], number: int, common: Sequence[str]) -> Job:
    """A job from its table in the file; what is missing or wrong is refused with the name of the job, or its number."""
    written = {"recipes": "recipe", "changes": "set"}
    keys = [written.get(field.name, field.name) for field in fields(Job)]
    for key in table:
        if key not in keys:
            raise unknown(f"key of job {number} of the queue", key, keys)
    where = f"job {number} of the queue"
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OptionError(f"{where} needs a name of small letters, digits, dots and hyphens, not {name!r}")
    where = f"job '{name}' of the queue"
    if not isinstance(table.get("asks"), str) or not table["asks"]:
        raise OptionError(f"{where} must say in a sentence what it asks")
    seconds = table.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise OptionError(f"{where}: seconds must be a number above 0, not {seconds!r}")
    if not isinstance(table.get("answer", ""), str):
        raise OptionError(f"{where}: answer must be a sentence")
    packed = table.get("packed", False)
    if not isinstance(packed, bool) and packed != SEEDS:
        raise OptionError(f'{where}: packed must be true, false or "{SEEDS}", not {packed!r}')
    recipe = table.get("recipe", [])
    recipes = _texts([recipe] if isinstance(recipe, str) else recipe, f"{where}: recipe")
    if not recipes:
        raise OptionError(f"{where} needs a recipe")
    seeds = table.get("seeds", [])
    if not isinstance(seeds, list):
        raise OptionError(f"{where}: seeds must be a list of whole numbers")
    return Job(
        name=name,
        asks=table["asks"],
        recipes=recipes,
        seconds=float(seconds),
        only=_texts(table.get("only", []), f"{where}: only"),
        changes=(*common, *_texts(table.get("set", []), f"{where}: set")),
        seeds=tuple(whole_number(f"{where}: seeds", seed) for seed in seeds),
        packed=packed,
        answer=table.get("answer", ""),
    )


def _texts(given: Any, what: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise OptionError(f"{what} must be a list of texts, not {given!r}")
    return tuple(given)
