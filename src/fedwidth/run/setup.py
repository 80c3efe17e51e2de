"""What a run is made of: all that its settings name, or that was given in Python, made and checked together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from fedwidth.config.adapter_settings import check_adapters, check_choice, with_rank, without_scaler
from fedwidth.config.architectures import (
    build_architectures,
    check_architectures,
    check_dtypes,
    check_gradients,
    given_architectures,
)
from fedwidth.config.budgets import with_budgets
from fedwidth.config.build import build_model, check_paths, find_device, load_data, public_data, split_data
from fedwidth.config.check import check_devices, check_settings, check_validation, check_values
from fedwidth.config.given import as_in_recipe, check_given, copied, warn_of_dealing, warn_of_idle, without_name
from fedwidth.config.method_settings import (
    check_exponent,
    check_norms,
    method_of,
    name_method,
    with_needs,
    with_public,
)
from fedwidth.config.objective_settings import name_objective
from fedwidth.config.private_settings import check_privacy, check_robust
from fedwidth.config.secure_settings import check_secure, warn_of_little
from fedwidth.core.narrow import check_projections
from fedwidth.data import Data, Partition
from fedwidth.data.checks import check_partition
from fedwidth.devices.capacity import Capacities
from fedwidth.devices.cohorts import Cohorts
from fedwidth.devices.correlation import correlate
from fedwidth.devices.narrower import as_shares_of_server
from fedwidth.errors import OptionError
from fedwidth.gpu import set_precision
from fedwidth.methods import Method
from fedwidth.methods.lookup.families import SLICES, traits_of
from fedwidth.objectives import Objective, objective_of
from fedwidth.plan import Plan
from fedwidth.plan.adapters import find_adapters
from fedwidth.plan.shares import warn_if_mostly_whole
from fedwidth.run.single_samples import check_single_samples
from fedwidth.run.weights.warm_start import plan_with_weights
from fedwidth.settings import Settings
from fedwidth.training.server.norms import BY_CAPACITY, norm_tensors
from fedwidth.training.server.single_updates import compares_updates


@dataclass(frozen=True)
class Setup:
    """All that a run needs; each thing was checked with the others."""

    settings: Settings
    """The settings with the names of what was given, and with what the method and the objective need."""
    method: Method
    """With the architectures of the run, where it has some."""
    objective: Objective
    device: torch.device
    data: Data
    partition: Partition
    capacities: Capacities
    """What each client can afford."""
    model: nn.Module
    """The global model, on the device."""
    plan: Plan
    public: Data | None
    """Data of the server's own, where there is some."""
    given: Mapping[str, str]
    """What the run was given in Python that its settings do not name."""


def set_up(
    settings: Settings,
    *,
    model: nn.Module | None = None,
    data: Data | None = None,
    partition: Partition | None = None,
    method: Method | None = None,
    objective: Objective | str | None = None,
    public: Data | None = None,
    models: Mapping[float, nn.Module] | None = None,
    named: bool = False,
) -> Setup:
    """What a run needs: what was given, and for the rest what the settings name. Nothing is written.

    `named` says that data and partition are those the settings name, made before.
    """
    check_given(
        settings, model=model, data=data, partition=partition, method=method, objective=objective, public=public
    )
    settings, method, objective = _name(settings, method, objective)
    settings = as_in_recipe(settings)
    own = {} if named else {"data": data, "partition": partition}
    given = without_name(settings, model=model, models=models or None, **own, public=public)
    if partition is not None and not named:
        settings = replace(settings, data=replace(settings.data, clients=len(partition)))
    check_values(settings)
    check_settings(settings, method, objective, dealt=partition is not None)
    method = method or method_of(settings)
    with_adapters = model is not None and bool(find_adapters(model))
    settings = settings if with_adapters else with_rank(settings, method)
    settings = as_shares_of_server(settings, ranks=with_adapters, models=bool(models))
    check_adapters(settings, method)
    check_exponent(settings, method)
    check_secure(settings, method)
    check_architectures(settings, method)
    check_privacy(settings, method)
    check_robust(settings, method)
    check_norms(settings, method)
    settings = with_needs(settings, method)
    if method.public and partition is None and public is None:
        settings = with_public(settings)
    if compares_updates(settings.server) and not method.slices:
        raise OptionError(
            f"server.clip must be 0 and server.screen false with {method.title}: its sub-models are no slices of the"
            " model, and are not compared"
        )
    device = find_device(settings.device)
    if data is not None and partition is None:
        warn_of_dealing(settings, data)
    data = data if data is not None else load_data(settings)
    objective = objective or objective_of(settings.objective, data)
    if (reason := objective.refuses(method)) is not None:
        raise OptionError(f"{reason}: choose another method or objective")
    settings = with_needs(settings, objective)
    warn_of_little(settings)
    if partition is None:
        partition = split_data(settings, data)
    elif not named:
        check_partition(partition, data)
    capacities = _assign_capacities(settings, partition)
    if device.type == "cuda":
        if not data.is_on(device):  # several runs may share data that is there already
            data = data.to(device)
        set_precision(settings.precision)
    # It is traced on the CPU, wherever a model of the user's own lies.
    whole = build_model(settings, data, objective) if model is None else copied(model)
    made, plan = plan_with_weights(whole, settings, data, objective)
    if settings.devices.budgets:
        settings, plan = with_budgets(
            settings, made, plan, data=data, partition=partition, method=method, objective=objective
        )
        capacities = _assign_capacities(settings, partition)
    warn_of_idle(settings, capacities)
    if models:
        method = replace(method, architectures=given_architectures(models, settings, method, data, objective))
    elif settings.models:
        method = replace(method, architectures=build_architectures(settings, data, objective))
    method = replace(method, enrolled=Cohorts(capacities, len(partition), settings.devices, settings.seed).enrolled)
    check_dtypes(made, method.architectures)
    check_gradients(made, method.architectures)
    settings = without_scaler(settings, plan)
    _check_has_norms(settings, made)
    check_single_samples(
        settings,
        made,
        data,
        objective=objective,
        partition=partition,
        capacities=capacities,
        architectures=method.architectures,
    )
    check_choice(settings, method, plan, min(method.enrolled))
    if traits_of(method).family == SLICES:
        measured = settings.evaluation.capacities  # also narrow models, whoever has them
        if min([*method.enrolled, *measured]) < 1:
            check_paths(made, plan, data)
        if not plan.adapters:
            enrolled = capacities.enrolled(settings.devices.excluded)
            rounding = str(method.values.get("rounding", "floor"))
            warn_if_mostly_whole(plan, enrolled, rounding)
            check_projections(made, plan, {*enrolled, *measured}, rounding)
    made.to(device)
    if public is None:
        public = public_data(settings, data, partition)
    if public is None and method.public:
        raise OptionError(
            f"{method.title} needs data of the server's own: give public=…, or a partition made with public=…"
        )
    public = public if public is None or device.type == "cpu" else public.to(device)
    return Setup(settings, method, objective, device, data, partition, capacities, made, plan, public, given)


def _name(
    settings: Settings, method: Method | None, objective: Objective | str | None
) -> tuple[Settings, Method | None, Objective | None]:
    """The settings with the names of a method and an objective that were given, so that they say what was run."""
    if method is not None:
        method = method.with_options()
        settings = name_method(settings, method)
    if isinstance(objective, str):
        return replace(settings, objective=replace(settings.objective, name=objective)), method, None
    return settings if objective is None else name_objective(settings, objective), method, objective


def _check_has_norms(settings: Settings, model: nn.Module) -> None:
    """Refuse norms by capacity of a model that has none to keep."""
    if settings.server.norms == BY_CAPACITY and not norm_tensors(model):
        raise OptionError(
            f"server.norms is {settings.server.norms}, but the model has no normalisation layers that are trained"
        )


def _assign_capacities(settings: Settings, partition: Partition) -> Capacities:
    """The capacities of the clients of a partition, which must suffice for a round."""
    devices = settings.devices
    if devices.per_round > len(partition):
        raise OptionError(f"devices.per_round is {devices.per_round}, but there are only {len(partition)} clients")
    check_validation(settings, partition)
    capacities = check_devices(settings, len(partition))
    return correlate(capacities, partition, devices.correlate, devices.correlate_strength, seed=settings.seed)
