"""What is wrong with settings, said before anything is written: with each alone, and with some of them together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce
from typing import Any

from fedwidth.config.adapter_settings import check_adapters
from fedwidth.config.architectures import check_architectures
from fedwidth.config.budgets import read_budgets
from fedwidth.config.method_settings import check_exponent, check_norms, method_of
from fedwidth.config.private_settings import check_privacy, check_robust
from fedwidth.config.schema import check_table, keys, read
from fedwidth.config.secure_settings import check_secure
from fedwidth.data import Partition
from fedwidth.data.catalogue import options_of
from fedwidth.data.partition import partition_options
from fedwidth.devices.capacity import Capacities, describe_mix
from fedwidth.devices.time import Speeds
from fedwidth.errors import OptionError, unknown
from fedwidth.methods import Method, method
from fedwidth.models.catalogue import FACTORIES
from fedwidth.objectives import Objective, objective_of
from fedwidth.settings import Settings

_DEVICE = re.compile(r"cpu|cuda(:\d+)?", re.ASCII)


def check_values(settings: Settings) -> None:
    """Every setting is of its type and within what is allowed, also where the record was made in Python."""
    for key in keys().values():
        value = reduce(getattr, key.name.split("."), settings)
        if key.type == dict[str, Any]:
            check_table(key, value)
        else:
            read(key, value)


def check_settings(
    settings: Settings, method: Method | None = None, objective: Objective | None = None, *, dealt: bool = False
) -> None:
    """What needs no data to be seen as wrong.

    `method` and `objective` are those of the run, where the settings need not find them; the data was `dealt` where
    the settings need not say how.
    """
    if not dealt:
        _check_dealing(settings)
    milestones = settings.training.milestones
    if any(later <= sooner for sooner, later in zip([0, *milestones], milestones, strict=False)):
        raise OptionError(f"training.milestones must be rounds in rising order, not {milestones}")
    if settings.training.schedule == "multistep" and not milestones:
        raise OptionError("training.schedule is multistep, so training.milestones must name at least one round")
    for name in ("validation", "public"):
        if not getattr(settings.data, name) < 1:
            raise OptionError(f"data.{name} must be a share from 0 to below 1, not {getattr(settings.data, name):g}")
    if settings.data.public and settings.data.public_name:
        raise OptionError("data.public is a share of the training data and data.public_name another data set: give one")
    evaluation = settings.evaluation
    if any(round < 1 for round in evaluation.also):
        raise OptionError(f"evaluation.also must be rounds, counted from 1, not {evaluation.also}")
    if twice := [each for each in evaluation.capacities if evaluation.capacities.count(each) > 1]:
        raise OptionError(f"evaluation.capacities must name each capacity once, not {twice[0]:g} twice")
    if evaluation.capacities_every % evaluation.every:
        raise OptionError(
            f"evaluation.capacities_every must be a multiple of evaluation.every ({evaluation.every}), or 0, not"
            f" {evaluation.capacities_every}"
        )
    if settings.model.fresh and not settings.model.weights:
        raise OptionError("model.fresh names tensors that are not read from model.weights, which is empty")
    if not _DEVICE.fullmatch(settings.device):
        raise OptionError(f"device must be cpu, cuda or cuda:N, not '{settings.device}'")
    if settings.engine == "processes" and settings.device != "cpu":
        raise OptionError(
            f"engine is processes, whose workers train on the CPU, but device is {settings.device}: set device=cpu, or"
            " engine=auto, serial, vectorised or cuda"
        )
    check_devices(settings, settings.data.clients)
    _check_names(settings)
    if objective is None:
        objective_of(settings.objective)
    if method is None:
        _check_method(settings)


def _check_dealing(settings: Settings) -> None:
    """What the settings say of how clients share the data."""
    data = settings.data
    if settings.devices.per_round > data.clients:
        raise OptionError(
            f"devices.per_round must be at most data.clients ({data.clients}), not {settings.devices.per_round}"
        )
    if not settings.evaluation.test and not data.validation:
        raise OptionError("evaluation.test is false, so data.validation must be above 0: nothing would be measured")
    allowed = partition_options(data.partition)
    _refuse_others(f"option of partition '{data.partition}'", data.partition_options, allowed)


def check_devices(settings: Settings, clients: int) -> Capacities:
    """The capacities of so many clients, checked with what the settings do with them."""
    devices = settings.devices
    try:
        capacities = Capacities.parse(devices.capacities)
    except OptionError as error:
        raise OptionError(f"devices.capacities: {error}") from None
    listed = capacities.by_client
    if listed is not None and len(listed) != clients:
        raise OptionError(
            f"devices.capacities lists {len(listed)} capacities for {clients} clients: give one for each client"
        )
    if not capacities.enrolled(devices.excluded):
        raise OptionError(f"devices.excluded leaves no capacity of '{describe_mix(devices.capacities)}'")
    read_budgets(devices)
    anew, own = "devices.dynamic draws them anew each round", "devices.capacities lists each client's own"
    if devices.dynamic and listed is not None:
        raise OptionError(f"{own} capacity, but {anew}: choose one")
    if devices.correlate != "none" and (devices.dynamic or listed is not None):
        raise OptionError(f"devices.correlate deals fixed capacities, but {anew if devices.dynamic else own}")
    if not devices.correlate_strength <= 1:
        raise OptionError(f"devices.correlate_strength must be from 0 to 1, not {devices.correlate_strength:g}")
    if not devices.dropout < 1:
        raise OptionError(f"devices.dropout must be a probability from 0 to below 1, not {devices.dropout:g}")
    if not devices.whole_only:  # else nobody knows yet who trains, and it is checked once that is settled
        Speeds.of(devices, capacities.enrolled(devices.excluded))
    return capacities


def _check_names(settings: Settings) -> None:
    """Names of models and data sets, and of their options (a model's are known to its factory)."""
    data = settings.data
    if ":" not in settings.model.name and settings.model.name not in FACTORIES:
        raise unknown("model", settings.model.name, [*FACTORIES, "package.module:factory"])
    _refuse_others(f"option of data set '{data.name}'", data.options, options_of(data.name))


def _check_method(settings: Settings) -> None:
    """The names of method and local rule, and their options."""
    chosen = settings.method
    found = method(chosen.name, local=settings.local.name or None)
    kind = f"option of method '{chosen.name}'" + (f" with '{settings.local.name}'" if settings.local.name else "")
    _refuse_others(kind, [*chosen.options, *settings.local.options], found.options)
    chosen_method = method_of(settings)  # which looks at the options' values too
    check_adapters(settings, chosen_method)
    check_exponent(settings, chosen_method)
    check_secure(settings, chosen_method)
    check_architectures(settings, chosen_method)
    check_privacy(settings, chosen_method)
    check_robust(settings, chosen_method)
    check_norms(settings, chosen_method)


def _refuse_others(kind: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    names = list(allowed)
    for name in given:
        if name not in names:
            raise unknown(kind, name, names)


def check_validation(settings: Settings, partition: Partition) -> None:
    """There are validation samples where the settings count on them, also in a partition made elsewhere."""
    if len(partition.validation):
        return
    if settings.data.validation:
        raise OptionError(
            f"data.validation is {settings.data.validation:g}, but the partition given holds nothing out:"
            " make it with make_partition(…, validation=…)"
        )
    if not settings.evaluation.test:
        raise OptionError("evaluation.test is false and there are no validation samples: nothing would be measured")
