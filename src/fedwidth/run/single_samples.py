"""Batches of one sample, which have no batch statistics: found before a run's first round."""

from __future__ import annotations

import torch
from torch import nn

from fedwidth.core.architectures import Architecture, Architectures
from fedwidth.core.narrow import copy_model
from fedwidth.data import Data, Partition
from fedwidth.data.records import moved
from fedwidth.devices.capacity import Capacities
from fedwidth.errors import OptionError
from fedwidth.importing import one_line
from fedwidth.objectives import Objective
from fedwidth.randomness import seeded
from fedwidth.settings import Settings
from fedwidth.training.batches import with_single_batch


def check_single_samples(
    settings: Settings,
    model: nn.Module,
    data: Data,
    *,
    objective: Objective,
    partition: Partition,
    capacities: Capacities,
    architectures: Architectures,
) -> None:
    """Refuse to train on batches of one sample where the model that a client holds has a norm that needs several.

    Batch norm of pictures can do with one, as long as it has several pixels: so the model is asked.
    """
    if not any(map(_has_batch_norm, (model, *(each.model for each in architectures.values())))):
        return
    devices, held = settings.devices, dict[Architecture | None, list[int]]()
    enrolled = capacities.enrolled(devices.excluded)
    fixed = None if devices.dynamic else capacities.assign(len(partition), settings.seed)
    for client in with_single_batch(partition.sizes, settings.training).tolist():
        own = enrolled if fixed is None else [float(fixed[client])]
        for network in dict.fromkeys(architectures.get(each) for each in own if each not in devices.excluded):
            held.setdefault(network, []).append(client)
    for network, alone in held.items():
        made = copy_model(model) if network is None else network.filled()
        if not _has_batch_norm(made):
            continue
        try:
            with torch.no_grad(), seeded(0):
                objective.answer(made.train(), moved(data.example(1), "cpu"))
        except Exception as error:  # a model may do anything
            raise OptionError(_describe_alone(settings, partition, alone, one_line(error))) from error


def _describe_alone(settings: Settings, partition: Partition, alone: list[int], reason: str) -> str:
    """What is wrong where these clients have a batch of one sample, and what would help."""
    single = [client for client in alone if partition.size(client) == 1]
    named = single or alone
    who = f"client {named[0]}" + (f" (and {len(named) - 1} more)" if len(named) > 1 else "")
    if not single:
        return (
            f"{who} has {partition.size(named[0])} samples, so with training.batch_size ="
            f" {settings.training.batch_size} its last batch has one, which the model cannot train on ({reason}):"
            " choose another batch size"
        )
    can_ask = partition.name in ("natural", "dirichlet")
    more = "data.partition_options = { min_size = 2 }" if can_ask else "a partition that gives it more"
    return (
        f"{who} has 1 sample, which the model cannot train on with any batch size ({reason}): choose {more}, or a model"
        " with group norm"
    )


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
