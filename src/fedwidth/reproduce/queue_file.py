"""results/queue.toml: the experiments that wait for a machine, in the order in which they are to be run.

[[job]]
name = "low-milestones"                      its own, also of its file in results/queue
asks = "Does …?"                             one sentence
recipe = "fedrolex/table3-cifar10-low"       or a list of them
only = ["heterofl"]                          the runs with these labels; none: all
set = ["training.milestones=[100, 150]"]     what differs, as --set takes it
seeds = [1]                                  none: those of the recipe
seconds = 70                                 that are expected, from start to end
packed = false                               whether its runs train as one batch
answer = "Confirmed: …"                      one sentence, once it has been run: confirmed, refuted or open
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from fedwidth.errors import FedwidthError, OptionError, unknown, whole_number
from fedwidth.reproduce.jobs import Job, list_jobs

FOLDER = "queue"
"""Of records of experiments that no recipe has."""
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*", re.ASCII)


@dataclass(frozen=True)
class Entry:
    """A job of the queue: some runs of recipes, with what differs from them."""

    name: str
    asks: str
    recipes: tuple[str, ...]
    seconds: float
    only: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    packed: bool = False
    answer: str = ""

    def jobs(self, changes: Sequence[str], work: Path) -> list[Job]:
        """Its runs, with further `changes` made to each.

        A run that is another experiment than the recipe's is recorded under the name of the entry, so that it is never
        taken for the recipe's.
        """
        find = partial(list_jobs, self.recipes, only=self.only, seeds=self.seeds, work=work)
        try:
            plain, changed = find(changes=[]), find(changes=[*self.changes, *changes])
        except FedwidthError as error:
            raise type(error)(f"job '{self.name}' of the queue: {error}") from None
        pairs = zip(changed, plain, strict=True)
        return [job if job.key == as_is.key else self._own(job, work) for job, as_is in pairs]

    def _own(self, job: Job, work: Path) -> Job:
        table = f"{FOLDER}/{self.name}"
        label = job.label if len(self.recipes) == 1 else f"{job.table}/{job.label}"
        return replace(job, table=table, label=label, folder=work / table / job.folder.relative_to(work))


def read_queue(path: Path, only: Sequence[str] = ()) -> list[Entry]:
    """The jobs of a queue, or those with these names (`*` stands for any characters)."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"cannot read the queue {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"the queue {path} is not valid TOML: {error}") from None
    jobs = document.pop("job", [])
    if document or not isinstance(jobs, list) or not all(isinstance(job, Mapping) for job in jobs):
        raise OptionError(f"the queue {path} must be a list of [[job]] tables and nothing else")
    entries = [_read_entry(job, number) for number, job in enumerate(jobs, 1)]
    names = [entry.name for entry in entries]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise OptionError(f"every job of a queue needs its own name, but '{twice[0]}' occurs twice")
    for pattern in only:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise unknown("job", pattern, names, also="* stands for any characters")
    return [entry for entry in entries if not only or any(fnmatchcase(entry.name, each) for each in only)]


def _read_entry(job: Mapping[str, Any], number: int) -> Entry:
    written = {"recipes": "recipe", "changes": "set"}
    keys = [written.get(field.name, field.name) for field in fields(Entry)]
    for key in job:
        if key not in keys:
            raise unknown(f"key of job {number} of the queue", key, keys)
    where = f"job {number} of the queue"
    name = job.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OptionError(f"{where} needs a name of small letters, digits, dots and hyphens, not {name!r}")
    where = f"job '{name}' of the queue"
    if not isinstance(job.get("asks"), str) or not job["asks"]:
        raise OptionError(f"{where} must say in a sentence what it asks")
    seconds = job.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise OptionError(f"{where}: seconds must be a number above 0, not {seconds!r}")
    if not isinstance(job.get("answer", ""), str):
        raise OptionError(f"{where}: answer must be a sentence")
    if not isinstance(job.get("packed", False), bool):
        raise OptionError(f"{where}: packed must be true or false")
    recipe = job.get("recipe", [])
    recipes = _texts([recipe] if isinstance(recipe, str) else recipe, f"{where}: recipe")
    if not recipes:
        raise OptionError(f"{where} needs a recipe")
    seeds = job.get("seeds", [])
    if not isinstance(seeds, list):
        raise OptionError(f"{where}: seeds must be a list of whole numbers")
    return Entry(
        name=name,
        asks=job["asks"],
        recipes=recipes,
        seconds=float(seconds),
        only=_texts(job.get("only", []), f"{where}: only"),
        changes=_texts(job.get("set", []), f"{where}: set"),
        seeds=tuple(whole_number(f"{where}: seeds", seed) for seed in seeds),
        packed=job.get("packed", False),
        answer=job.get("answer", ""),
    )


def _texts(given: Any, what: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise OptionError(f"{what} must be a list of texts, not {given!r}")
    return tuple(given)
