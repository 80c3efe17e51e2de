"""Records of runs of published tables: each finished run is one JSON line in results/<table>.jsonl.

A run that was stopped leaves a line of the same form in results/unfinished/<table>.jsonl, which says how far it got.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch

import fedwidth
from fedwidth.analysis.experiment_key import experiment_key
from fedwidth.config.influence import identity
from fedwidth.errors import StateError
from fedwidth.evaluation.samples import samples_to_report
from fedwidth.files import LOCK, append_line, check_writable
from fedwidth.gpu import arithmetic
from fedwidth.reproduce.client_accuracies import Clients, read_clients
from fedwidth.settings import Settings

UNFINISHED = "unfinished"


@dataclass(frozen=True)
class Record:
    """What is kept of a run: its settings, what it measured, and what it ran on."""

    recipe: str
    label: str
    seed: int
    identity: str
    """Fingerprint of the resolved settings."""
    settings: dict[str, Any]
    changes: list[str]
    """The settings that were changed with --set, as `key=value`."""
    rounds: int
    steps: int
    """How many local steps all clients took in all rounds."""
    evaluations: list[list[float | None]]
    """A row for each evaluation: round, global accuracy, local accuracy, global loss."""
    final_accuracy: float
    """The global accuracy that was measured last: after the last round, unless the run is unfinished."""
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
    """How many runs trained as one batch, this one included; `seconds` is its share of their time."""
    same_as: str = ""
    """The title of a run of that batch with the same sub-models in every round: the two were trained as one."""
    clients: Clients | None = None
    """For each client, its accuracy on its own data and the number of its capacity in the mix; None where many."""
    engine: str = ""
    """The engine that trained the run, also where the settings leave the choice; earlier records do not say."""
    fell_back: str = ""
    """Why the engine that was chosen or asked for could not train the run; empty where it did."""
    commit: str = ""
    """The commit of the source, with a plus where files were changed since; earlier records do not say."""
    samples: str = "test"
    """What the global accuracies were measured on: test, or validation where the test set was not looked at."""
    spent: list[list[float]] | None = None
    """For each evaluation, what all clients had sent and received until then (bytes) and computed (multiply-adds);
    earlier records do not say."""
    capacity_accuracy: dict[str, float | None] | None = None
    """The accuracy of the last round's sub-model of each capacity, the mean over draws where clients of a capacity hold
    different ones; earlier records do not say."""
    capacity_validation: dict[str, float | None] | None = None
    """The same on validation samples; None where there are none."""
    together_accuracy: float | None = None
    """The accuracy of the mean of what these sub-models answer, one for each capacity; earlier records do not say."""
    chosen_accuracy: float | None = None
    """The same of those among them that validation samples choose; None where there are none."""
    chosen_capacities: list[float] | None = None
    """Their capacities."""

    @cached_property
    def key(self) -> str:
        """The key of its experiment: equal for all runs of it, wherever and with whatever seed they ran."""
        return experiment_key(self.settings)


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

    How it serves single clients is read from its `folder`.
    """
    lines = list(metrics)
    samples = samples_to_report({name for line in lines for name in line})
    accuracy, loss = samples.key(), samples.key("loss")
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
        precision=arithmetic(settings.device, settings.precision),
        torch=torch.__version__,
        version=fedwidth.__version__,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        packed=packed,
        same_as=same_as,
        clients=read_clients(folder, settings.devices.capacities) if folder else None,
        engine=engine,
        fell_back=fell_back,
        commit=commit,
        samples=samples.name,
        spent=_spent(lines, measured),
        capacity_accuracy=measured[-1].get("capacity_accuracy_mean") or measured[-1].get("capacity_accuracy"),
        capacity_validation=measured[-1].get("capacity_validation_accuracy_mean")
        or measured[-1].get("capacity_validation_accuracy"),
        together_accuracy=measured[-1].get("together_accuracy"),
        chosen_accuracy=measured[-1].get("chosen_accuracy"),
        chosen_capacities=measured[-1].get("chosen_capacities"),
    )


def path_of(results: Path, table: str) -> Path:
    """The file in which the runs of a table are recorded."""
    return results / f"{table}.jsonl"


def append_record(results: Path, record: Record) -> None:
    """Write the record of a run at the end of the file of its table; several processes may do so at a time."""
    append_line(path_of(results, record.recipe), json.dumps(asdict(record)), lock=results / LOCK)


def check_can_record(results: Path, tables: Iterable[str]) -> None:
    """Refuse a folder in which the runs of these tables, finished or not, could not be recorded once they ended."""
    for folder in (results, results / UNFINISHED):
        check_writable(folder / LOCK, *(path_of(folder, table) for table in tables))


def read_records(results: Path, table: str) -> list[Record]:
    """The finished runs of a table, oldest first; half-written lines are left out."""
    path = path_of(results, table)
    if not path.exists():
        return []
    try:
        texts = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise StateError(f"cannot read {path}: {error.strerror or error}") from error
    kinds, records = get_type_hints(Record), []
    known = {field.name for field in fields(Record)}
    needed = {field.name for field in fields(Record) if field.default is MISSING}
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if not isinstance(line, dict) or not needed <= set(line):
            raise StateError(f"line {number} of {path} is no run of fedwidth")
        found = {name: line[name] for name in known & set(line)}
        for name, value in found.items():
            if not _is(value, kinds[name]):
                raise StateError(f"line {number} of {path} is no run of fedwidth: its {name} is {str(value)[:60]!r}")
        records.append(Record(**found))
    return records


def read_all(results: Path) -> list[Record]:
    """The finished runs of all tables, in the order of the names of their files."""
    paths = sorted(path.relative_to(results).with_suffix("") for path in results.rglob("*.jsonl"))
    tables = [path.as_posix() for path in paths if path.parts[0] != UNFINISHED]
    return [record for table in tables for record in read_records(results, table)]


def by_experiment(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Runs by the key of their experiment, wherever they ran and whichever table asked for them.

    Seeds are in order; of several runs with one seed the last one counts.
    """
    found: dict[str, dict[int, Record]] = {}
    for record in records:
        found.setdefault(record.key, {})[record.seed] = record
    return {key: [mine[seed] for seed in sorted(mine)] for key, mine in found.items()}


def hardware(device: str) -> str:
    """The name of the GPU or processor that this device stands for."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _spent(lines: Sequence[Mapping[str, Any]], measured: Sequence[Mapping[str, Any]]) -> list[list[float]] | None:
    """Bytes and multiply-adds of all rounds up to each that was measured; None where lines do not say."""
    if not all({"bytes_down", "bytes_up", "macs"} <= set(line) for line in lines):
        return None
    sent = accumulate(line["bytes_down"] + line["bytes_up"] for line in lines)
    until = {
        line["round"]: [*sums]
        for line, *sums in zip(lines, sent, accumulate(line["macs"] for line in lines), strict=True)
    }
    return [until[line["round"]] for line in measured]


def _is(value: object, kind: Any) -> bool:
    """Whether a value of a JSON file is of the kind that a field of a record has; what lists hold is not looked at.

    >>> _is(3, float), _is(None, float | None), _is(True, int), _is(math.nan, float)
    (True, True, False, False)
    """
    if isinstance(kind, UnionType):
        return any(_is(value, each) for each in get_args(kind))
    if kind is float:
        return type(value) is int or (isinstance(value, float) and math.isfinite(value))
    return isinstance(value, get_origin(kind) or kind) and not isinstance(value, bool)


def _short(value: float | None) -> float | None:
    """A number with six digits, which is more than ten thousand test samples can tell."""
    return value if value is None or isinstance(value, int) else round(value, 6)
