"""The recipes of a data set's reported runs, trained as its trials chose, and their jobs in the queue.

`python -m reproduction.benchmark.recipes NAME` writes them. They are those of CIFAR-10 with other data and other
learning rates, so that all data sets have one protocol.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from fedwidth.config.read import read_settings
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.files import write_whole
from fedwidth.reproduce.records import read_all
from reproduction.benchmark.asked import as_asked
from reproduction.benchmark.standings import ONLY_HALF, ONLY_QUARTER
from reproduction.benchmark.tuning import find_best, find_trials, training_of

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "src" / "fedwidth" / "recipes" / "benchmark"
QUEUE = ROOT / "results" / "queue.toml"
JOB = re.compile(r"^\[\[job\]\]\n(?:.+\n)+", re.MULTILINE)
FIRST = "cifar10"
"""The data set whose recipes are the pattern of all others'."""
KINDS = ("", "-yardsticks")
TRAINING = re.compile(r'(label = "(?P<row>[^"/]+).*?)training\.optimiser = "\w+", training\.lr = [\d.e-]+')
TITLES = {FIRST: "CIFAR-10", "cifar100": "CIFAR-100"}
TRAINED_AS = {ONLY_HALF: "exclude", ONLY_QUARTER: "quarter"}
"""Rows without trials of their own, and those whose they share."""

Training = dict[str, str]
"""The settings that trials chose, as a recipe has them, by row: a method or a yardstick."""


def read_template(kind: str) -> str:
    """A recipe of CIFAR-10, which others are made from."""
    return (RECIPES / f"{FIRST}{kind}.toml").read_text(encoding="utf-8")


def find_training(name: str, results: Path) -> Training:
    """How each row of a data set's trials is best trained; trials that reported runs need and lack are named."""
    trials = find_trials(f"benchmark/{name}-tuning", as_asked(read_all(results)))
    best = find_best(trials)
    reported = {found["row"] for kind in KINDS for found in TRAINING.finditer(read_template(kind))}
    if missing := [row for row in trials if row in reported and row not in best]:
        raise OptionError(f"{name}: trials of {', '.join(missing)} have not all been run")
    chosen = {}
    for row, column in best.items():
        record = trials[row][column]
        assert record is not None
        training = training_of(record)
        rate = f"{training['lr']}" if training["lr"] >= 0.01 else f"{training['lr']:.0e}".replace("e-0", "e-")
        chosen[row] = f'training.optimiser = "{training["optimiser"]}", training.lr = {rate}'
    return chosen | {row: chosen[other] for row, other in TRAINED_AS.items() if other in chosen}


def make_recipe(template: str, name: str, chosen: Training) -> str:
    """A recipe of CIFAR-10 as one of another data set."""
    first, data = (read_settings(f"benchmark/{of}-tuning").runs[0].settings.data for of in (FIRST, name))
    text = template.replace(TITLES[FIRST], TITLES[name]).replace(FIRST, name)
    per_client = "per_client = {per_client}"
    text = text.replace(per_client.format_map(first.partition_options), per_client.format_map(data.partition_options))
    text = text.replace(f"validation = {first.validation}", f"validation = {data.validation}")
    return TRAINING.sub(lambda found: found[1] + chosen[found["row"]], text)


def add_jobs(queue: str, name: str) -> str:
    """A queue in which the jobs of CIFAR-10's reported runs are there for another data set too, behind its trials."""
    jobs = {job[0]: tomllib.loads(job[0])["job"][0] for job in JOB.finditer(queue)}
    known = {job["name"] for job in jobs.values()}
    reported = [f"benchmark/{FIRST}{kind}" for kind in KINDS]
    texts = [text for text, job in jobs.items() if job["recipe"] in reported]
    unanswered = [re.sub(r"(?m)^answer = .*\n", "", text) for text in texts]
    new = [text.replace(FIRST, name).replace(TITLES[FIRST], TITLES[name]) for text in unanswered]
    missing = [text for text in new if tomllib.loads(text)["job"][0]["name"] not in known]
    trials = [text for text, job in jobs.items() if job["recipe"] == f"benchmark/{name}-tuning"]
    if not trials:
        raise OptionError(f"the queue has no job for the trials of {name}, behind which its runs are to stand")
    last = trials[-1]
    return queue.replace(last, "\n".join([last, *missing]))


def main(name: str = "", results: str = "results") -> None:
    """Write both recipes of a data set, and their jobs."""
    if name not in TITLES:
        raise OptionError(f"recipes are written for {' or '.join(TITLES)}, not for '{name}'")
    chosen = find_training(name, Path(results))
    for kind in KINDS:
        write_whole(RECIPES / f"{name}{kind}.toml", make_recipe(read_template(kind), name, chosen))
    write_whole(QUEUE, add_jobs(QUEUE.read_text(encoding="utf-8"), name))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except FedwidthError as error:
        sys.exit(str(error))
