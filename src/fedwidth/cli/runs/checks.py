"""What is wrong with the runs of a command, seen before the first one writes or clears anything."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

from fedwidth.cli.runs.planned_run import PlannedRun
from fedwidth.cli.runs.resolved import naming
from fedwidth.config.build import find_device
from fedwidth.config.method_settings import method_of
from fedwidth.devices.capacity import Capacities
from fedwidth.devices.cohorts import Cohorts
from fedwidth.errors import OptionError
from fedwidth.methods.definition.promises import tried_out
from fedwidth.methods.lookup.reference import is_shipped
from fedwidth.run.cache import Cache
from fedwidth.run.folder import CONFIG, check_folder, check_left_by_run, holds_run
from fedwidth.run.start import check_own_method
from fedwidth.run.weights.warm_start import read_weights
from fedwidth.settings import Settings


def check_runs(runs: Sequence[PlannedRun], cache: Cache) -> None:
    """Make what the runs need, each distinct data set, partition and plan once, and refuse what cannot work."""
    several = {_kind(run.settings) for run in runs}
    tried: set[str] = set()
    for run in runs:
        with naming(run.label, first=run is runs[0]):
            _check(run.settings, cache)
            shipped = is_shipped(method_of(run.settings))
            wanted = len(several) > 1 or (len(runs) > 1 and not shipped)  # one alone is made at once anyhow
            if wanted and (kind := _kind(run.settings)) not in tried:
                tried.add(kind)
                with warnings.catch_warnings(action="ignore"):  # they are said when it is its turn
                    experiment = cache.experiment(run.settings)
                    if not shipped:
                        check_own_method(experiment)


def _check(settings: Settings, cache: Cache) -> None:
    find_device(settings.device)
    if settings.model.weights:
        read_weights(settings.model.weights)
    clients = len(cache.partition(settings))
    plan, method = cache.plan(settings), method_of(settings)
    if method.reads:  # there is neither state nor memory yet
        return
    capacities = Capacities.parse(settings.devices.capacities)
    method = replace(method, enrolled=Cohorts(capacities, clients, settings.devices, settings.seed).enrolled)
    asked = dict.fromkeys([*method.enrolled, *settings.evaluation.capacities])  # also measured where nobody has it
    with nullcontext() if is_shipped(method) else tried_out(method):
        method.assign(plan, list(enumerate(asked)), round=0, seed=settings.seed)


def _kind(settings: Settings) -> str:
    """What runs differ in that may be refused together: neither seeds nor names are."""
    return json.dumps(asdict(replace(settings, seed=0, name="", answers="")), sort_keys=True, default=str)


def check_folders(runs: Sequence[PlannedRun], folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse the folders of the runs, or the one that holds them all, where another run is in the way."""
    own = [run.folder for run in runs]
    if len(set(own)) < len(own):
        raise OptionError("two of the runs are the same: give each value once")
    for run in runs:
        check_folder(run.folder, run.settings, resume=resume, overwrite=overwrite)
    if overwrite:
        check_left_by_run(folder)
    if folder in own or overwrite:
        return
    if (folder / CONFIG).exists() or (not resume and holds_run(folder)):
        raise OptionError(f"{folder} holds another run already; give --overwrite or another --out")


def check_engine(settings: Settings) -> None:
    """Refuse, before anything is written or cleared, an engine that cannot be had.

    Slots without a GPU too: from Python they train on the CPU, but nobody who asks for CUDA wants that.
    """
    if settings.engine == "ray" and find_spec("ray") is None:
        raise OptionError("engine = 'ray' needs the package ray: pip install 'fedwidth[ray]'")
    if settings.engine == "cuda" and settings.device == "cpu":
        raise OptionError("engine is cuda, but device is cpu: set device=cuda, or engine=auto for the CPU")
