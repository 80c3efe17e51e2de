"""The numbers that a model's modules hold, and how they are followed: attributes, and the fields of configurations."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.plan.formulas import Constraints, FollowedFloat, FollowedInt, Held

SPATIAL = {"kernel_size", "stride", "padding", "dilation", "output_padding"}
"""Attributes that are never widths: not worth following."""
MAX_ITEMS = 8
"""How many numbers of a tuple or list are followed."""


@contextmanager
def followed_attributes(model: nn.Module, constraints: Constraints) -> Iterator[dict[Held, int]]:
    """Replace every number held by a module by a followed one; gives the integers by where they are held."""
    held: dict[Held, int] = {}
    holders: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def followed(module: str, name: str, value: int, place: int | None = None) -> int:
        if value <= 1:
            return value
        attribute = Held(module, name, place)
        held[attribute] = value
        return FollowedInt(value, attribute, constraints)

    seen: set[int] = set()
    for path, module in model.named_modules():
        plain = type(module).__module__.startswith("torch.nn.")
        for prefix, values in [("", vars(module)), *_records(vars(module), seen)]:
            holders.append((values, dict(values)))
            for name, value in list(values.items()):
                if name.startswith("_") or name in SPATIAL:
                    continue
                if type(value) is float and value > 0 and not prefix and not plain:
                    values[name] = FollowedFloat(value, Held(path, name))
                elif type(value) is int:
                    values[name] = followed(path, prefix + name, value)
                elif type(value) in (tuple, list, torch.Size) and all(type(v) is int for v in value[: MAX_ITEMS + 1]):
                    first = [followed(path, prefix + name, v, place) for place, v in enumerate(value[:MAX_ITEMS])]
                    values[name] = type(value)([*first, *value[MAX_ITEMS:]])
    try:
        yield held
    finally:
        for values, before in holders:
            values.update(before)


def _records(values: dict[str, Any], seen: set[int], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, fields) of the configurations among these values and inside them, each once."""
    for name, value in list(values.items()):
        if not is_record(value) or id(value) in seen or name.startswith("_"):
            continue
        seen.add(id(value))
        yield f"{prefix}{name}.", vars(value)
        yield from _records(vars(value), seen, f"{prefix}{name}.")


def is_record(value: Any) -> bool:
    """Whether it is an object that holds settings, such as a data class, a namespace, or a configuration."""
    if isinstance(value, (type, nn.Module, Tensor)) or not hasattr(value, "__dict__"):
        return False
    if isinstance(value, (SimpleNamespace, Namespace)) or is_dataclass(value):
        return True
    return callable(getattr(type(value), "to_dict", None)) or callable(getattr(type(value), "model_dump", None))


def holder_of(module: nn.Module, name: str) -> tuple[dict[str, Any] | None, str]:
    """The fields among which a number of this name stands (None: there are none), and its name there."""
    *path, leaf = name.split(".")
    value: Any = module
    for step in path:
        value = vars(value).get(step) if hasattr(value, "__dict__") else None
    return (vars(value) if hasattr(value, "__dict__") else None), leaf
