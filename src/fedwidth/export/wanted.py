"""Which model of a run is asked for: the capacities that `load` and `export` take, and what the run says of them.

They are shares of the run's model, as those that its metrics and tables name. A run with `devices.relative_to =
"model"` keeps its devices as such shares alone, so who goes by the model at full width is told what devices hold.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import islice
from pathlib import Path

from fedwidth.config.given import read_given
from fedwidth.config.method_settings import method_of
from fedwidth.config.read import read_config
from fedwidth.devices.capacity import parse_capacity
from fedwidth.devices.cohorts import Cohorts
from fedwidth.errors import OptionError, StateError
from fedwidth.methods import Method
from fedwidth.objectives import OBJECTIVES
from fedwidth.run.folder import CONFIG, find_run_folders, read_metrics, read_summary
from fedwidth.settings import Settings

Capacity = float | str | Fraction
Wanted = Capacity | list[Capacity] | tuple[Capacity, ...]
CHOSEN = "chosen"
"""Stands for the capacities whose models do best together on a run's validation samples."""
BY_CLASSES = "models answer together with probabilities of classes for each sample or word"

MAX_SHOWN = 3
"""Of a folder that holds several runs, so many are named."""


def wanted_widths(folder: Path, wanted: Wanted | None) -> float | list[float]:
    """The capacity of the model that is asked for, or those of the models that are to answer together.

    One in a list is that model: nobody answers together with it.
    """
    if wanted is None:
        return 1.0
    if isinstance(wanted, str) and wanted == CHOSEN:
        widths = _chosen(folder)
    elif isinstance(wanted, (list, tuple)):
        widths = [_held(folder, parse_capacity(str(each))) for each in wanted]
    else:
        widths = [_held(folder, parse_capacity(str(wanted), f", or '{CHOSEN}'"))]
    return widths[0] if len(widths) == 1 else widths


def settings_of(folder: Path) -> Settings:
    """What a run was made with, for the CPU."""
    if not (folder / CONFIG).is_file():
        if inner := [str(found) for found in islice(find_run_folders(folder), MAX_SHOWN + 1)]:
            more = ", …" * (len(inner) > MAX_SHOWN)
            raise StateError(f"{folder} holds runs of its own: name one of {', '.join(inner[:MAX_SHOWN])}{more}")
        raise StateError(f"{folder} holds no run: there is no {CONFIG} in it")
    return replace(read_config(folder / CONFIG), device="cpu")


def refuse_where_whole(lacks: str, method: Method) -> None:
    """Say why a run lacks narrower models where its method gives every device the whole one."""
    if method.holds_all:
        raise OptionError(f"{lacks}: with {method.title} every device holds the whole model; leave the capacity out")


def server_width(settings: Settings) -> float:
    """How wide the model is of which capacities are shares, itself a share of the model at full width.

    With adapters they are shares of a rank, which the width leaves as it is.
    """
    return 1.0 if settings.adapter.rank else settings.model.width


def share(width: float) -> str:
    """A width as a fraction, where a short one is near.

    >>> share(0.25), share(2 / 3)
    ('1/4', '2/3')
    """
    return str(Fraction(width).limit_denominator(1000))


def _chosen(folder: Path) -> list[float]:
    """The capacities that the validation samples of a finished run chose."""
    found = read_summary(folder).get("chosen_capacities")
    if not found:
        settings, lacks = settings_of(folder), f"{folder} has chosen no capacities"
        if not _of_program(folder):
            refuse_where_whole(lacks, method_of(settings))
        objective = OBJECTIVES.get(settings.objective.name)
        if objective is not None and not objective.labelled:
            raise OptionError(f"{lacks}: {BY_CLASSES}, which {objective.title} does not have")
        raise OptionError(
            f"{lacks}: that takes a run to its end with data.validation above 0, several evaluation.capacities, a"
            " method that hands out slices and one class for each sample"
        )
    return list(found)


def _of_program(folder: Path) -> bool:
    """Whether the run's method is one that none but its program can find."""
    return "method" in read_given(folder / CONFIG)


def _held(folder: Path, width: float) -> float:
    """The capacity of devices that is meant; beside a narrower server, one that no device of the run had is refused.

    Who goes there by the model at full width would be given a model of another width than their devices hold.
    """
    if width == 1:
        return width
    settings = settings_of(folder)
    came = {float(held) for line in read_metrics(folder) for held in line.get("capacities", ())}
    there = sorted({1.0, *Cohorts.of(settings).enrolled, *came}, reverse=True)
    for held in there:
        if f"{held:g}" == f"{width:g}":  # as metrics and tables write it
            return held
    server = server_width(settings)
    if server == 1 or (not _of_program(folder) and method_of(settings).holds_all):
        return width  # where all devices hold the whole model, that is said elsewhere
    shown = ", ".join(f"{share(held)} ({share(held * server)})" for held in there)
    raise OptionError(
        f"no device of {folder} holds {share(width)} of its model, which is itself {share(server)} of the model at full"
        f" width: name one of the shares {shown}, in brackets those of the model at full width"
    )
