"""`fedwidth.load`: the trained model of a run folder, or the narrow one of a width, ready to use.

A run that has ended has stored all that this takes (`run/weights/ready_models.py`), so its data need not be there. A
folder of an older version, a run that was stopped, and a width that the run did not keep need the data: statistics of
batch norms are then collected as the run's evaluation would.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.config.architectures import build_architectures
from fedwidth.config.build import build_model, plan_model
from fedwidth.config.given import check_kinds, copied, read_given
from fedwidth.config.method_settings import method_of
from fedwidth.core.narrow import skeleton, with_buffers
from fedwidth.core.part import Part
from fedwidth.data import Data
from fedwidth.data.stand_in import facts_of, stand_in
from fedwidth.devices.cohorts import Cohorts
from fedwidth.errors import DataError, FedwidthError, OptionError, StateError
from fedwidth.evaluation.representative import LastRound, representative_index
from fedwidth.experiment import Experiment
from fedwidth.export.wanted import BY_CLASSES, Wanted, refuse_where_whole, settings_of, wanted_widths
from fedwidth.methods import Method
from fedwidth.models.catalogue import find
from fedwidth.models.together import Together
from fedwidth.objectives import Objective, objective_of
from fedwidth.objectives.output import logits_of
from fedwidth.plan import Plan
from fedwidth.plan.trace import tensors_of
from fedwidth.run import checkpoint
from fedwidth.run.folder import CONFIG, read_metrics
from fedwidth.run.weights.ready_models import ReadyModels, part_of, read_models, ready_part, static
from fedwidth.settings import Settings
from fedwidth.training.skeletons import fill

AGAIN = "give it again, as fedwidth.load(…, model=…), or fedwidth.export.export_run(…, model=…) for a file"
"""How what was given in Python is given again; a command cannot."""
STORED_ANEW = "resume the run (--resume), which stores it, or give its data in Python (data=…)"
"""How a run that ended in an older version gets its plan."""


@dataclass(frozen=True)
class Taken:
    """A model that was taken out of a run, and what is known of it."""

    model: nn.Module
    """On the CPU, in evaluation mode, its statistics collected."""
    settings: Settings
    """Of the run."""
    capacity: float
    counts: Mapping[str, int] | None
    """How many units of each group it has; None for one that is no slice of the global model."""
    data: Data
    """The data given, or the run's, or zeros in their place where they are not needed (`data/stand_in.py`)."""
    here: bool
    """Whether these are real data, and no zeros."""
    facts: Mapping[str, Any]
    """What of the data the model depends on."""
    objective: Objective
    plan: Plan
    """Of the global model."""
    round: int
    """After so many rounds."""
    folder: Path
    given: Mapping[str, str] = field(default_factory=dict)
    """What the run was given in Python, with the names there."""
    together: tuple[float, ...] = ()
    """Of models of one run that answer together, the capacity of each; `capacity` is that of the widest."""
    several: tuple[Taken, ...] = ()
    """Each of the models of several runs that answer together; then `model` and `objective` are of all, the rest is of
    the first."""


def load(
    run: str | Path | Iterable[str | Path],
    capacity: Wanted | None = None,
    *,
    model: nn.Module | None = None,
    data: Data | None = None,
) -> nn.Module:
    """The trained model of a run folder, or with a capacity the narrow one of that width, ready to use.

    A capacity is a share of the run's model, as its metrics name it; where that is narrower than the model at full
    width, it must be one that devices held. With several capacities, such as [1, 0.5, 0.25], those models answer
    together: with the logarithm of the mean of the probabilities they give to each class. "chosen" stands for those
    that the run's validation samples chose. The models of several runs in a list of their folders answer
    together in the same way, as wholes; `model` and `data` are then those of all of them.

    It is on the CPU and in evaluation mode, and its batch norms have the statistics with which the run measured it.
    `model` and `data` are those the run was given, where it was given any in Python. A safetensors file that `fedwidth
    export` wrote is loaded as well.
    """
    if not isinstance(run, (str, Path)):
        from fedwidth.export.several import take_several

        runs = runs_of(run, capacity)
        if len(runs) != 1:
            return take_several(runs, model=model, data=data).model
        run = runs[0]
    if Path(run).suffix == ".safetensors" or Path(run).is_file():  # which may have any name
        from fedwidth.export.tensors import open_file

        if capacity is not None:
            raise OptionError(f"{run} holds a model of one width: leave the capacity out")
        return open_file(Path(run), model=model)
    return take(run, capacity, model=model, data=data).model


def runs_of(run: Iterable[str | Path], capacity: Wanted | None) -> list[str | Path]:
    """The runs of a list: a single one, of which a capacity can be asked, or several that answer together as wholes."""
    runs = list(run) if isinstance(run, Iterable) else [run]
    if not all(isinstance(each, (str, Path)) for each in runs):
        raise OptionError(f"a run is the path of its folder, and several are a list of those, not {run!r}")
    if capacity is not None and len(runs) > 1:
        raise OptionError("models of several runs answer together as wholes: leave the capacity out")
    return runs


def take(
    run: str | Path,
    capacity: Wanted | None = None,
    *,
    model: nn.Module | None = None,
    data: Data | None = None,
) -> Taken:
    """As `load`, with what is known of the model."""
    check_kinds(model=model, data=data)
    widths = wanted_widths(Path(run), capacity)
    if isinstance(widths, list):
        return _take_together(run, widths, model=model, data=data)
    return _take_one(run, widths, model=model, data=data)


def _take_together(
    run: str | Path, capacities: Sequence[float], *, model: nn.Module | None, data: Data | None
) -> Taken:
    """Take the models of several widths, which answer together."""
    if not capacities:
        raise OptionError("no capacity is given: name those whose models answer together, such as [1, 0.5]")
    found = [_take_one(run, capacity, model=model, data=data) for capacity in capacities]
    first, widths = found[0], tuple(each.capacity for each in found)
    if not first.objective.labelled:
        raise OptionError(f"{BY_CLASSES}, which those of {run} do not give")
    if not (method := method_of(first.settings)).slices:
        raise OptionError(f"only sub-models that are slices answer together, and {method.title} hands out others")
    return replace(
        first,
        model=Together([each.model for each in found], first.objective.output).eval(),
        objective=replace(first.objective, output=logits_of),  # together they give nothing but logits
        capacity=max(widths),
        counts=None,
        together=widths,
    )


def _take_one(run: str | Path, width: float, *, model: nn.Module | None, data: Data | None) -> Taken:
    """Take the model of one width."""
    folder, settings = Path(run), settings_of(Path(run))
    if not (folder / checkpoint.NAME).is_file():
        raise StateError(f"{folder} holds no trained model: there is no {checkpoint.NAME} in it")
    given = read_given(folder / CONFIG)
    if model is None:
        refuse_without(given, "model", str(folder))
    round = checkpoint.rounds_done(folder)
    ready = read_models(folder, round=round)
    if ready is not None and (width == 1 or width in ready.tensors):
        return replace(_take_ready(folder, settings, width, ready, model, data), given=given)
    if width != 1:
        refuse_where_whole(f"{folder} has no model of capacity {width:g}", method_of(settings))
    if data is None:
        refuse_without(given, "data", str(folder))
    return replace(_take_collecting(folder, settings, width, model, data), given=given)


def _take_ready(
    folder: Path, settings: Settings, capacity: float, ready: ReadyModels, model: nn.Module | None, data: Data | None
) -> Taken:
    """Take a model all of which the run has stored."""
    given, data = data, stand_in(ready.data) if data is None else data
    objective = objective_of(settings.objective, data)
    whole, plan = global_model(settings, data, objective, model, ready.plan)
    state = checkpoint.read_state(folder / checkpoint.NAME)
    _check_fit(whole, state, folder, model)
    counts: Mapping[str, int] | None = {name: group.size for name, group in plan.groups.items()}
    if capacity == 1:
        made = whole
        fill(made, {**state, **ready.tensors[1.0]})
    elif (counts := ready.counts[capacity]) is None:
        method = with_architectures(settings, data, objective)
        made = _other_part(folder, settings, method, plan, capacity, whole)
        fill_all(made, ready.tensors[capacity], str(folder))
    else:
        with plan_of_older(ready.plan, given, STORED_ANEW):
            made = skeleton(whole, plan, counts)
            fill_all(made, ready.tensors[capacity], str(folder))
    made = with_buffers(made, plan) if counts is not None else made
    here = given is not None
    return Taken(made.eval(), settings, capacity, counts, data, here, ready.data, objective, plan, ready.round, folder)


def _take_collecting(
    folder: Path, settings: Settings, capacity: float, model: nn.Module | None, data: Data | None
) -> Taken:
    """Take a model whose statistics are collected now, from the run's data."""
    wanted = "its models" if capacity == 1 else f"the model of capacity {capacity:g}"
    try:
        experiment = Experiment(settings, model=model, data=data)
    except DataError as error:
        raise StateError(
            f"{folder} has not stored {wanted} (it was stopped, is of an older version, or no device has this width),"
            f" and batch norm statistics cannot be collected without its data: {error}"
        ) from None
    _check_fit(experiment.model, checkpoint.read_state(folder / checkpoint.NAME), folder, model)
    server, _ = checkpoint.load_server(folder, identity=None, device=experiment.device)
    evaluator = static(experiment.evaluator)
    counts: Mapping[str, int] | None = {name: group.size for name, group in experiment.plan.groups.items()}
    if capacity == 1:
        made = evaluator.prepare(experiment.model, server.state)
    else:
        part = part_of(experiment, capacity, evaluator.last_round(server))
        if part is None:
            raise StateError(f"{folder}: every client has a model of its own, and none of the last has {capacity:g}")
        made = ready_part(experiment, evaluator, part, server.state if part.is_whole else server.state_at(capacity))
        held = getattr(part, "held", None)
        counts = None if held is not None and held.architecture is not None else getattr(part, "counts", None)
    made = with_buffers(made, experiment.plan) if counts is not None else made
    return Taken(
        made.eval(),
        settings,
        capacity,
        counts,
        experiment.data,
        True,
        facts_of(experiment.data),
        experiment.objective,
        experiment.plan,
        server.round,
        folder,
    )


def model_of(taken: Taken) -> tuple[str, Mapping[str, Any]]:
    """The name and the options of the run's model; one that was given in Python has the name of its class."""
    named = taken.settings.model
    return (taken.given["model"], {}) if "model" in taken.given else (named.name, named.options)


def refuse_without(given: Mapping[str, str], name: str, source: str) -> None:
    """Refuse to do without what the run was given in Python."""
    if name in given:
        raise StateError(f"the {name} of {source} ({given[name]}) was given in Python: {AGAIN.replace('model', name)}")


def global_model(
    settings: Settings,
    data: Data,
    objective: Objective,
    model: nn.Module | None = None,
    stored: Plan | None = None,
) -> tuple[nn.Module, Plan]:
    """The model that settings name, or the one given, at the width the server holds, and its plan: the `stored` one
    where it fits.

    Older folders and files have none stored: it is traced, where there are no data on zeros and ones in their place.
    """
    given = None if model is None else copied(model)
    if given is None and ":" in settings.model.name:
        find(settings.model.name)  # one that cannot be imported says so, before anything is asked of its data
    try:
        whole = build_model(settings, data, objective) if given is None else given
        return plan_model(whole, settings, data, objective, stored=stored)
    except FedwidthError as error:
        if model is not None:
            raise StateError(f"{given_one(model)} does not fit the data of the run: {error}") from None
        raise StateError(
            f"the model '{settings.model.name}' that the run names does not fit its data ({error}): if another one was"
            f" given in Python, {AGAIN}"
        ) from None


def with_architectures(settings: Settings, data: Data, objective: Objective) -> Method:
    """The method that settings name, with the architectures and devices that they name."""
    architectures = build_architectures(settings, data, objective)
    return replace(method_of(settings), architectures=architectures, enrolled=Cohorts.of(settings).enrolled)


@contextmanager
def plan_of_older(stored: Plan | None, data: Data | None, remedy: str) -> Iterator[None]:
    """Say what to do where tensors do not fit a plan that was neither stored nor traced on data."""
    try:
        yield
    except FedwidthError as error:
        if stored is not None or data is not None:
            raise
        raise StateError(
            f"{error}: an older version stored them without their plan, and without data another is found where a model"
            f" goes another way by what it reads; {remedy}"
        ) from None


def _other_part(
    folder: Path, settings: Settings, method: Method, plan: Plan, capacity: float, whole: nn.Module
) -> nn.Module:
    """A module of the kind that the run's method hands out where that is no slice, not yet filled."""
    server, _ = checkpoint.load_server(folder, identity=None, device=torch.device("cpu"))
    line = read_metrics(folder)[-1]
    cohort = list(zip(line["clients"], line["capacities"], strict=True))
    last = LastRound(server.round - 1, cohort, settings.seed, server.memory, server.state, server.clients)
    part: Part = representative_index(method, plan, capacity, last)
    made = part.module(whole, plan)
    own = dict(whole.named_parameters())
    for name, parameter in made.named_parameters():  # what clients froze for a round can be trained by who loads it
        if name in own:
            parameter.requires_grad_(own[name].requires_grad)
    return made


def given_one(model: nn.Module) -> str:
    """A model that was given, as the beginning of a sentence."""
    return f"the model given, a {type(model).__name__},"


def fill_all(module: nn.Module, tensors: Mapping[str, Tensor], source: str, given: nn.Module | None = None) -> None:
    """Copy tensors into a module, which must have all of them in the same shapes; `given` is the model it is of."""
    own, _ = tensors_of(module)
    for name, tensor in tensors.items():
        if name not in own or own[name].shape != tensor.shape:
            there = f"{list(own[name].shape)}" if name in own else "missing"
            how = f"'{name}' is {list(tensor.shape)}, not {there}"
            if given is not None:
                raise StateError(f"{given_one(given)} does not fit {source}: there {how}")
            raise StateError(f"{source} does not fit the model it names: {how}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


def _check_fit(model: nn.Module, state: Mapping[str, Tensor], folder: Path, given: nn.Module | None) -> None:
    own, _ = tensors_of(model)
    for name in {**own, **state}:
        if name not in own or name not in state or own[name].shape != state[name].shape:
            if given is not None:
                raise StateError(
                    f"{given_one(given)} is not the one {folder} was trained with: they differ in '{name}'"
                )
            raise StateError(
                f"{folder} was trained with another model than its {CONFIG} names (they differ in '{name}'): if it was"
                f" given in Python, {AGAIN}"
            )
