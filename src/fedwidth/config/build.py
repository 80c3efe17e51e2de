"""What a run is built of, as its settings name it: device, data, partition, model and plan, each checked when made."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.adapters import adapt
from fedwidth.config.budgets import with_profiles
from fedwidth.core.narrow import fits_plan, narrow
from fedwidth.data import Data, Partition, load, make_partition
from fedwidth.data.catalogue import options_of
from fedwidth.data.records import moved
from fedwidth.devices.capacity import Capacities
from fedwidth.errors import OptionError, PlanError
from fedwidth.methods import method
from fedwidth.models import build
from fedwidth.objectives import Objective, objective_of
from fedwidth.objectives.check import check_objective
from fedwidth.plan import Plan, trace
from fedwidth.plan.adapters import find_adapters
from fedwidth.plan.trace import tensors_of
from fedwidth.plan.watching.reaching import WatchedPass, leading, likely, parting, telling, unreached
from fedwidth.randomness import torch_seed
from fedwidth.settings import Settings


def find_device(name: str) -> torch.device:
    """The device of this name, if this machine has it."""
    if not name.startswith("cuda"):
        return torch.device(name)
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not found:
        raise OptionError(f"device is '{name}', but PyTorch finds no GPU on this machine; use device = 'cpu'")
    device = torch.device(name)
    if (device.index or 0) >= found:
        raise OptionError(f"device is '{name}', but this machine has only {found} GPU{'s' * (found > 1)}, from cuda:0")
    return device


def load_data(settings: Settings) -> Data:
    """The data the settings name."""
    wanted = settings.data
    return load(wanted.name, wanted.root or None, cache=wanted.cache or None, **wanted.options)


def split_data(settings: Settings, data: Data) -> Partition:
    """The clients' shares of it."""
    wanted = settings.data
    return make_partition(
        data,
        wanted.partition,
        wanted.clients,
        settings.seed,
        validation=wanted.validation,
        public=wanted.public,
        **wanted.partition_options,
    )


HOW_INPUTS_LOOK = ("normalise", "words", "length")
"""Options of data sets that another set must share, if one model is to answer for both."""


def public_data(settings: Settings, data: Data, partition: Partition) -> Data | None:
    """The server's own data, whose labels nobody looks at; None where it has none."""
    if name := settings.data.public_name:
        known = options_of(name)
        alike = {k: v for k, v in settings.data.options.items() if k in HOW_INPUTS_LOOK and k in known}
        found = load(name, settings.data.root or None, **alike)
        if found.kind != data.kind or found.shape != data.shape:
            raise OptionError(
                f"data.public_name is '{name}', whose inputs {list(found.shape)} are not those of the run's data,"
                f" {list(data.shape)}"
            )
        return found
    return replace(data, train=data.train.take(partition.public)) if len(partition.public) else None


OF_THE_RUN = {"name": "model.name", "seed": "seed"}
"""What a factory cannot take as an option, and the settings of these names."""


def build_model(settings: Settings, data: Data, objective: Objective | None = None) -> nn.Module:
    """The model the settings name, for this data and objective, initialised from the run's seed."""
    objective = objective or objective_of(settings.objective, data)
    shape = data.shape if isinstance(data.example(1), Tensor) else None
    facts: dict[str, Any] = {"data_shape": shape, "classes": objective.outputs(data)}
    if data.kind == "tokens":
        facts = {"vocabulary": data.classes}
    seed = torch_seed(settings.seed, "model")
    for option in settings.model.options:
        if option in facts:
            says = "nothing of it" if facts[option] is None else facts[option]
            raise OptionError(f"model option '{option}' comes from the data, which says {says}: leave it out")
        if option in OF_THE_RUN:
            raise OptionError(f"model option '{option}' is the run's own ({OF_THE_RUN[option]}): call yours otherwise")
    return build(settings.model.name, seed=seed, **facts, **settings.model.options)


def plan_model(
    model: nn.Module,
    settings: Settings,
    data: Data,
    objective: Objective | None = None,
    *,
    fill: Callable[[nn.Module], None] = lambda _: None,
    stored: Plan | None = None,
) -> tuple[nn.Module, Plan]:
    """The model at the width the server holds, with adapters where the settings ask for them, and its plan.

    A model whose output does not fit the data is refused. `fill` may write weights into the model of that width. With
    the `stored` plan of the same settings, where it fits the model as it is, nothing is traced.
    """
    objective = objective or objective_of(settings.objective, data)
    if next(model.parameters(), None) is None:
        raise PlanError("the model has nothing to slice: it has no parameters")
    if not any(tensor.requires_grad for tensor in tensors_of(model)[0].values()):
        raise PlanError("the model has nothing to train: requires_grad is False for all of its parameters")
    changes = settings.model.width != 1 or bool(settings.adapter.rank)
    plan = stored.before if changes and stored is not None else stored
    if plan is None or not fits_plan(model, plan):
        check_objective(objective, model, data)
        plan = trace_on(model, data, settings, objective)
    before = plan
    if settings.model.width != 1:
        index = method("heterofl", rounding="ceil").select(plan, capacity=settings.model.width)
        model = narrow(model, plan, index)
    fill(model)
    if settings.adapter.rank:
        model = adapt_model(model, settings)
    if changes:
        fitting = stored is not None and fits_plan(model, stored)
        plan = stored if fitting and stored is not None else _trace_again(model, data, settings, objective)
        plan = replace(plan, before=before)
    return model, with_profiles(plan, settings.devices)


def _trace_again(model: nn.Module, data: Data, settings: Settings, objective: Objective) -> Plan:
    """The plan of what the settings made of a model that had one."""
    try:
        return trace_on(model, data, settings, objective)
    except PlanError as error:
        if settings.model.width == 1:
            raise
        width = Fraction(settings.model.width).limit_denominator(1000)
        raise PlanError(f"model.width is {width}, and at that width {error}; give a wider one") from None


def adapt_model(model: nn.Module, settings: Settings) -> nn.Module:
    """The model with the adapters that the settings ask for."""
    wanted = settings.adapter
    if find_adapters(model):
        raise OptionError(f"adapter.rank is {wanted.rank}, but the model has adapters already: leave it 0")
    return adapt(
        model,
        wanted.rank,
        _listed(wanted.targets),
        alpha=wanted.alpha or None,
        outside=wanted.outside,
        train=_listed(wanted.train),
        seed=settings.seed,
    )


def trace_on(model: nn.Module, data: Data, settings: Settings, objective: Objective) -> Plan:
    """The plan of a model as the first two training samples show it, with those that show more where they do not all.

    Where parameters were not reached and the model goes another way by what it reads, samples that reach them are
    looked for among the first few hundred.
    """
    batch = _training_inputs(data)
    plan = trace_model(model, moved(data.example(), "cpu"), settings, objective)
    missing = unreached(plan)
    more = telling(model, batch, len(data.train), missing) if missing else []
    return trace_model(model, batch([0, 1, *more]), settings, objective) if more else plan


def check_paths(model: nn.Module, plan: Plan, data: Data) -> None:
    """Refuse a model whose samples go to several experts, some of which none of them has reached: there a narrow model
    fails. Where all samples go one way, nobody knows whether there is another, and a warning says so.
    """
    like = likely(plan)
    if not leading(plan, like) or not WatchedPass(model, moved(data.example(), "cpu"), like).by_value:
        return
    alike = {*like, *(name for others in like.values() for name in others)}
    parted, looked = parting(model, _training_inputs(data), len(data.train), alike)
    known = {name: others for name, others in like.items() if not parted.isdisjoint(others)}
    certain = bool(leading(plan, known))
    first, *others = missing = known if certain else like
    more = f" and {len(others)} more" if others else ""
    missed = f"none of the {looked} training samples that were looked at reaches '{first}'{more}"
    keep = f"(model.keep = '{', '.join(leading(plan, missing))}')"
    if certain:
        raise PlanError(
            f"the model goes another way by what it reads, and {missed}: a narrow model would fail where one does; keep"
            f" whole what leads there {keep}, or take it out of the model"
        )
    warnings.warn(
        f"{missed}: if others do, a narrow model fails there, unless what leads there is whole {keep}", stacklevel=3
    )


def _training_inputs(data: Data) -> Callable[[Sequence[int]], Any]:
    """The inputs of training samples, by their numbers."""
    return lambda numbers: moved(data.batch(data.train, torch.tensor(numbers))[0], "cpu")


def trace_model(model: nn.Module, example: Any, settings: Settings, objective: Objective) -> Plan:
    """The plan of a model, as the settings and the objective say what stays whole."""
    keep, whole = _listed(settings.model.keep), _all_whole(settings)

    def traced(keep: Sequence[str]) -> Plan:
        return trace(model, example, heads=settings.model.heads, output=objective.output, keep=keep, whole=whole)

    plan = traced(keep)
    if not plan.adapters or settings.adapter.widths:
        return plan
    widths = [name for name in plan.groups if name not in plan.rank_groups]
    return traced([*keep, *widths]) if widths else plan


def plan_key(settings: Settings) -> str:
    """What `plan_model` asks the settings for, the data apart, as one text: where it is the same, plans are."""
    parts = [asdict(part) for part in (settings.model, settings.adapter, settings.objective)]
    return json.dumps([*parts, settings.devices.profiles, _all_whole(settings)], sort_keys=True)


def _all_whole(settings: Settings) -> bool:
    """Whether every device that takes part holds the whole model, so that one with nothing to slice will do."""
    return Capacities.parse(settings.devices.capacities).enrolled(settings.devices.excluded) == (1.0,)


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
