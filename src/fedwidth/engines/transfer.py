"""How tensors and indexes travel to workers that hold the model and its plan already.

Tensors go as bytes: a shared tensor would take a file descriptor each. An index goes as plain arrays, without the plan
it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwidth.core.index import Index
from fedwidth.core.tensor_bytes import TensorBytes
from fedwidth.plan.plan import Plan

Array = NDArray[np.generic]


def encode(tensors: Mapping[str, Tensor]) -> dict[str, TensorBytes]:
    """Tensors by name as bytes by name."""
    return {name: TensorBytes.of(tensor) for name, tensor in tensors.items()}


def decode(
    encoded: Mapping[str, TensorBytes], *, copy: bool = False, device: torch.device | None = None
) -> dict[str, Tensor]:
    """The tensors that were encoded, on a device; unless they are copies they must not be written to."""
    tensors = {name: each.tensor(copy=copy) for name, each in encoded.items()}
    return tensors if device is None else {name: tensor.to(device) for name, tensor in tensors.items()}


def encode_nested(values: Mapping[str, Mapping[str, Tensor] | float]) -> dict[str, dict[str, TensorBytes] | float]:
    """Groups of tensors by name, each encoded; a number stays a number."""
    return {name: encode(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def decode_nested(encoded: Mapping[str, Mapping[str, TensorBytes] | float], *, copy: bool = False) -> dict[str, Any]:
    """The groups of tensors and numbers that were encoded."""
    return {name: decode(value, copy=copy) if isinstance(value, Mapping) else value for name, value in encoded.items()}


def encode_part(part: Any) -> Any:
    """What a client trains as it is sent to workers: an index without its plan, and any other kind of part as it is."""
    return EncodedIndex.of(part) if isinstance(part, Index) else part


def decode_part(encoded: Any, plan: Plan) -> Any:
    """The part that was encoded, for a worker's plan."""
    return encoded.index(plan) if isinstance(encoded, EncodedIndex) else encoded


@dataclass(frozen=True)
class EncodedIndex:
    """An index without its plan, which workers have already."""

    counts: dict[str, int]
    units: dict[str, Array] | None
    """The units kept of each group, where they say everything."""
    kept: dict[str, tuple[Array, ...]]
    """The positions kept of each dimension of each tensor, where the units do not say everything."""

    @classmethod
    def of(cls, index: Index) -> EncodedIndex:
        """An index as plain arrays."""
        if index.units is not None:
            return cls(index.counts, {name: units.numpy() for name, units in index.units.items()}, {})
        return cls(index.counts, None, {name: tuple(k.numpy() for k in kept) for name, kept in index.items()})

    def index(self, plan: Plan) -> Index:
        """The index, for a plan."""
        if self.units is not None:
            return Index.of_units(plan, {name: torch.tensor(units) for name, units in self.units.items()})
        kept = {name: tuple(torch.tensor(k) for k in dims) for name, dims in self.kept.items()}
        return Index(plan, kept, counts=self.counts)
