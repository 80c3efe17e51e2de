"""What a run was given in Python: each thing of the right kind, and one fit for the other."""

from __future__ import annotations

import warnings
from dataclasses import fields, is_dataclass
from typing import Any

from torch import nn

from fedwidth.data import Data, Partition
from fedwidth.errors import DataError, OptionError
from fedwidth.methods import Method
from fedwidth.objectives import Objective
from fedwidth.settings import Settings

KINDS: dict[str, tuple[Any, str]] = {
    "model": (nn.Module, "a torch.nn.Module"),
    "data": (Data, "fedwidth.data.Data, as from_tensors, from_dataset and from_clients make it"),
    "partition": (Partition, "a fedwidth.data.Partition, as make_partition makes it"),
    "method": (Method, "a fedwidth.Method, as fedwidth.method(name) finds it"),
    "objective": (Objective | str, "a fedwidth.Objective, or its name"),
    "public": (Data, "fedwidth.data.Data"),
}
"""What may be given, of which type, and how one comes by it."""


def check_given(settings: object, **given: object) -> None:
    """Refuse what is of another kind; None is what was not given."""
    if not isinstance(settings, Settings):
        raise OptionError(f"settings must be fedwidth.settings.Settings, not {_kind(settings)}")
    for field in fields(Settings):
        default, found = getattr(Settings(), field.name), getattr(settings, field.name)
        if is_dataclass(default) and not isinstance(found, type(default)):
            raise OptionError(f"settings.{field.name} must be {type(default).__name__}(…), not {_kind(found)}")
    for name, thing in given.items():
        kind, wanted = KINDS[name]
        if thing is not None and not isinstance(thing, kind):
            raise OptionError(f"{name} must be {wanted}, not {_kind(thing)}")
    model = given["model"]
    if isinstance(model, nn.Module) and any(tensor.is_meta for tensor in model.parameters()):
        raise OptionError("model is on the meta device, where weights have no values: model.to_empty and its own start")


def check_partition(partition: Partition, data: Data) -> None:
    """Refuse a partition of other samples than the data's."""
    if len(partition.targets) != len(data.train):
        raise DataError(
            f"the partition is of {len(partition.targets)} training samples, but the data has {len(data.train)}:"
            " make it of the same data"
        )


def warn_of_dealing(settings: Settings, data: Data) -> None:
    """Warn where data says whose each sample is, and nobody said how clients share it."""
    if data.train.users is not None and settings.data.partition == Settings().data.partition:
        warnings.warn(
            f"the data says whose each sample is, but data.partition is '{settings.data.partition}', which deals all"
            " samples anew: set it to 'natural' to leave them where they are",
            stacklevel=4,
        )


def _kind(thing: object) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"a {type(thing).__name__}"
