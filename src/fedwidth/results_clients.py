"""Accuracies of single clients, kept beside the results: a record holds their mean only.

Runs leave them in clients.json of their folder. `collect_clients` copies those of finished runs into
results/clients.json, from where figures are drawn when the folders are long gone.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedwidth.checkpoint import write_whole
from fedwidth.errors import FedwidthError, StateError
from fedwidth.results import experiment_of
from fedwidth.schema import build
from fedwidth.settings import Settings

CLIENTS = "clients.json"

Kept = dict[str, list[float]]
"""What was run, seed included -> accuracy of each client on its own data."""


def read_clients(results: Path) -> Kept:
    """The accuracies that are kept beside the results."""
    path = results / CLIENTS
    if not path.exists():
        return {}
    try:
        kept: Kept = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise StateError(f"{path} is damaged; remove it and collect it again with `fedwidth results --work`") from None
    return kept


def collect_clients(results: Path, work: Path, wanted: Iterable[Settings]) -> int:
    """Add what finished runs below the folder `work` say of the wanted experiments; returns how many were new."""
    kept = read_clients(results)
    before = len(kept)
    experiments = {_experiment(asdict(settings)) for settings in wanted}
    for settings, accuracies in _finished(work):
        if _experiment(settings) in experiments:
            kept.setdefault(key_of(settings), accuracies)
    if len(kept) > before:
        lines = (f"{json.dumps(key)}: {json.dumps(kept[key])}" for key in sorted(kept))
        write_whole(results / CLIENTS, "{\n" + ",\n".join(lines) + "\n}\n")
    return len(kept) - before


def key_of(settings: Mapping[str, Any]) -> str:
    """A name for one run: its experiment and its seed."""
    return f"{_experiment(settings)} seed {settings['seed']}"


def _experiment(settings: Mapping[str, Any]) -> str:
    return json.dumps(experiment_of(settings), sort_keys=True)


def _finished(work: Path) -> Iterator[tuple[Mapping[str, Any], list[float]]]:
    for path in sorted(work.rglob(CLIENTS)):
        try:
            settings = build(Settings, tomllib.loads((path.parent / "config.toml").read_text(encoding="utf-8")))
            rows = json.loads(path.read_text(encoding="utf-8"))
            accuracies = [round(float(row["accuracy"]), 4) for row in rows if row["accuracy"] is not None]
        except (OSError, ValueError, KeyError, TypeError, FedwidthError):
            continue  # some other file of that name
        if (path.parent / "summary.json").exists() and accuracies:
            yield asdict(settings), accuracies
