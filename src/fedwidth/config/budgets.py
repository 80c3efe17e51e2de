"""Budgets and profiles of a recipe: from what devices can spend to their capacities, and from shares to a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction

from torch import nn

from fedwidth.data import Data, Partition
from fedwidth.devices.budget import DeviceClass
from fedwidth.devices.fit import capacity_of, fit_classes
from fedwidth.devices.needs import Costing, Work
from fedwidth.devices.profile import read_profiles
from fedwidth.errors import OptionError
from fedwidth.methods import Method
from fedwidth.objectives import Objective
from fedwidth.objectives.played import played_loss
from fedwidth.plan import Plan
from fedwidth.settings import DeviceSettings, Settings

PROFILE = "profile"
"""The key of a budget that asks for a profile."""


def read_budgets(devices: DeviceSettings) -> dict[str, tuple[DeviceClass, bool]]:
    """The classes that `devices.budgets` names, and whether each is to have a profile."""
    found = {}
    for name, table in devices.budgets.items():
        if not isinstance(table, Mapping):
            raise OptionError(f"devices.budgets.{name} must be a table such as {{memory = '512MB'}}, not {table!r}")
        wanted = table.get(PROFILE, False)
        if not isinstance(wanted, bool):
            raise OptionError(f"devices.budgets.{name}.{PROFILE} must be true or false, not {wanted!r}")
        own = {key: value for key, value in table.items() if key != PROFILE}
        found[name] = DeviceClass.of(name, own), wanted
    return found


def with_budgets(
    settings: Settings,
    model: nn.Module,
    plan: Plan,
    *,
    data: Data,
    partition: Partition,
    method: Method,
    objective: Objective,
) -> tuple[Settings, Plan]:
    """The settings with the capacities that the budgets come to, and the plan with their profiles."""
    devices, training = settings.devices, settings.training
    classes = read_budgets(devices)
    if not classes:
        return settings, plan
    mean = max(1, round(sum(map(int, partition.sizes)) / len(partition)))
    seen = training.steps * training.batch_size if training.steps else training.epochs * mean
    work = Work(training.batch_size, seen, training.optimiser, settings.precision)
    if any(wanted for _, wanted in classes.values()):
        plan = replace(plan, profiles={})  # those that budgets have come to before, in settings that say so
    costing = Costing(model, plan, data.example(), work, loss=played_loss(objective, data, training.batch_size))
    rounding = str(method.values.get("rounding", "floor"))
    weights: dict[Fraction, float] = {}
    of_all: dict[Fraction, list[Mapping[str, float]]] = {}
    for device, wanted in classes.values():
        (found,) = fit_classes(costing, [device], rounding=rounding, profiles=wanted)
        capacity = capacity_of(found)
        weights[capacity] = weights.get(capacity, 0.0) + device.weight
        of_all.setdefault(capacity, []).append(found.profile or {})
    # What is wider than the capacity in some groups has to fit all of its classes; without a profile it does not.
    profiles = {
        str(capacity): {name: min(one[name] for one in own) for name in own[0]}
        for capacity, own in of_all.items()
        if all(own)
    }
    mix = " ".join(f"{capacity}:{weight:g}" for capacity, weight in sorted(weights.items(), reverse=True))
    if devices.capacities not in (DeviceSettings().capacities, mix):
        raise OptionError(f"devices.budgets come to the capacities '{mix}': leave out devices.capacities")
    resolved = replace(devices, capacities=mix, profiles=profiles or devices.profiles)
    return replace(settings, devices=resolved), with_profiles(plan, resolved)


def with_profiles(plan: Plan, devices: DeviceSettings) -> Plan:
    """The plan with the profiles that settings give capacities."""
    profiles: dict[float, dict[str, float]] = {}
    for text, (capacity, table) in read_profiles(devices).items():
        for pattern, share in table.items():
            named = [name for name in plan.groups if fnmatchcase(name, pattern)]
            if not named:
                raise OptionError(
                    f"devices.profiles.'{text}' names '{pattern}', which is no width group: {', '.join(plan.groups)}"
                )
            profiles.setdefault(capacity, {}).update(dict.fromkeys(named, share))
    return replace(plan, profiles=profiles) if profiles else plan
