"""Runs of published tables: one JSON line for each finished one in results/<table>.jsonl, appended by the runs.

Runs that were stopped leave a line of the same form in results/unfinished/<table>.jsonl, so that the page can say how
far they got.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import fedwidth
from fedwidth.config.influence import MEASURING, PRECISION, ROUNDING, experiment_of, identity
from fedwidth.errors import StateError
from fedwidth.files import LOCK, append_line
from fedwidth.reproduce.clients import Clients, read_clients
from fedwidth.settings import Settings

UNFINISHED = "unfinished"
MEASURED_BY_VALIDATION = ("validation_accuracy", "validation_loss")

MAY_DIFFER = ("seed", *ROUNDING, *PRECISION, *MEASURING)
"""What runs of one cell may differ in besides what has no influence at all: where, and how often it is looked at."""


@dataclass(frozen=True)
class Record:
    """A run: what was run, what it measured, and where."""

    recipe: str
    label: str
    seed: int
    identity: str
    """Fingerprint of the resolved settings."""
    settings: dict[str, Any]
    changes: list[str]
    """Settings changed with --set."""
    rounds: int
    steps: int
    """Local steps of all clients in all rounds."""
    evaluations: list[list[float | None]]
    """[round, global accuracy, local accuracy, global loss] each."""
    final_accuracy: float
    """The last that was measured: of the last round, unless the run is unfinished."""
    best_accuracy: float
    best_round: int
    local_accuracy: float | None
    seconds: float
    hardware: str
    precision: str
    torch: str
    version: str
    date: str
    packed: int = 1
    """Runs that trained as one batch with it, itself included; `seconds` are its share of their time."""
    same_as: str = ""
    """A run of that batch that held the same sub-models in every round, so that the two were trained once."""
    clients: Clients | None = None
    """[accuracy on its own data, place of its capacity in the mix] of each client; None where they are many."""
    engine: str = ""
    """What trained it, also where the settings leave the choice; earlier records do not say."""
    fell_back: str = ""
    """Why it was not the engine that was chosen or asked for, where that one could not train the run."""
    commit: str = ""
    """Of the source, with a plus where that was changed since; earlier records do not say."""
    samples: str = "test"
    """What the global accuracies are of: the test set, or the validation samples where that was not looked at."""


def make_record(
    recipe: str,
    label: str,
    settings: Settings,
    *,
    changes: Sequence[str],
    metrics: Iterable[Mapping[str, Any]],
    steps: int,
    engine: str = "",
    fell_back: str = "",
    commit: str = "",
    packed: int = 1,
    same_as: str = "",
    folder: Path | None = None,
) -> Record:
    """The record of a run that just ended, or of the part of it that is done, from the lines of its metrics.

    What the run left in its `folder` says how it serves single clients.
    """
    lines = list(metrics)
    samples = "test" if settings.evaluation.test else "validation"
    accuracy, loss = ("global_accuracy", "global_loss") if samples == "test" else MEASURED_BY_VALIDATION
    measured = [line for line in lines if accuracy in line]
    best = max(measured, key=lambda line: line[accuracy])
    columns = ("round", accuracy, "local_accuracy", loss)
    return Record(
        recipe=recipe,
        label=label,
        seed=settings.seed,
        identity=identity(settings),
        settings=asdict(settings),
        changes=list(changes),
        rounds=settings.rounds,
        steps=steps,
        evaluations=[[_short(line.get(column)) for column in columns] for line in measured],
        final_accuracy=measured[-1][accuracy],
        best_accuracy=best[accuracy],
        best_round=best["round"],
        local_accuracy=measured[-1].get("local_accuracy"),
        seconds=lines[-1]["seconds"],
        hardware=hardware(settings.device),
        precision=settings.precision if settings.device.startswith("cuda") else "float32",
        torch=torch.__version__,
        version=fedwidth.__version__,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        packed=packed,
        same_as=same_as,
        clients=read_clients(folder, settings.devices.capacities) if folder else None,
        engine=engine,
        fell_back=fell_back,
        commit=commit,
        samples=samples,
    )


def path_of(results: Path, table: str) -> Path:
    """Where the runs of a table are recorded."""
    return results / f"{table}.jsonl"


def append_record(results: Path, record: Record) -> None:
    """Add a line; several processes may do so at a time."""
    append_line(path_of(results, record.recipe), json.dumps(asdict(record)), lock=results / LOCK)


def read_records(results: Path, table: str) -> list[Record]:
    """The finished runs of a table, oldest first; half-written lines are left out."""
    path = path_of(results, table)
    if not path.exists():
        return []
    known, records = {field.name for field in fields(Record)}, []
    needed = {field.name for field in fields(Record) if field.default is MISSING}
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if not isinstance(line, dict) or not needed <= set(line):
            raise StateError(f"line {number} of {path} is no run of fedwidth")
        records.append(Record(**{name: line[name] for name in known & set(line)}))
    return records


def read_all(results: Path) -> list[Record]:
    """The finished runs of all tables."""
    paths = sorted(path.relative_to(results).with_suffix("") for path in results.rglob("*.jsonl"))
    tables = [path.as_posix() for path in paths if path.parts[0] != UNFINISHED]
    return [record for table in tables for record in read_records(results, table)]


def find_records(records: Iterable[Record], settings: Settings) -> list[Record]:
    """The runs of one experiment, wherever they ran and whichever table asked: each seed's last, seeds in order."""
    return by_experiment(records).get(key_of(asdict(settings)), [])


def by_experiment(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Runs by what was run (`key_of` their settings): of each seed the last, seeds in order."""
    found: dict[str, dict[int, Record]] = {}
    for record in records:
        found.setdefault(key_of(record.settings), {})[record.seed] = record
    return {key: [mine[seed] for seed in sorted(mine)] for key, mine in found.items()}


def key_of(settings: Mapping[str, Any]) -> str:
    """A name for an experiment: equal for all its runs."""
    return json.dumps(experiment_of(settings, without=MAY_DIFFER), sort_keys=True)


def hardware(device: str) -> str:
    """The name of the processor that trains on this device."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _short(value: float | None) -> float | None:
    """Six digits: more than ten thousand test samples can tell."""
    return value if value is None or isinstance(value, int) else round(value, 6)
