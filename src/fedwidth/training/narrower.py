"""A narrower sub-model inside the one that a client trains: its weights are slices of the client's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedwidth.core.index import Index
from fedwidth.objectives import arguments

Slices = dict[str, list[tuple[int, Tensor]]]
"""By the name of a tensor, the dimensions it is cut in, and which of the client's positions are kept there."""


class Narrower:
    """A narrower sub-model inside the one in another module."""

    def __init__(self, module: nn.Module, inner: Index, outer: Index, device: torch.device) -> None:
        self.module, self.scales = module, inner.plan.scale_buffers
        self._slices: Slices = {
            name: [(dim, kept.to(device, copy=True)) for dim, kept in dims]
            for name, dims in _slices(inner, outer).items()
        }

    def move(self, inner: Index, outer: Index) -> None:
        """Lie elsewhere in the client's sub-model from now on; tensors keep their addresses, for captured steps."""
        for name, dims in _slices(inner, outer).items():
            for (_, held), (_, kept) in zip(self._slices[name], dims, strict=True):
                held.copy_(kept)

    def __call__(self, client: nn.Module, inputs: Any) -> Any:
        """The answer of the narrower model; gradients reach the weights of the client's."""
        tensors = {}
        for name, tensor in [*client.named_parameters(), *client.named_buffers()]:
            if name in self.scales:
                continue
            for dim, kept in self._slices[name]:
                tensor = tensor.index_select(dim, kept)
            tensors[name] = tensor
        return functional_call(self.module, tensors, *arguments(inputs))


def _slices(inner: Index, outer: Index) -> Slices:
    """Where the narrower sub-model lies in the client's; whole dimensions are left out."""
    return {
        name: [
            (dim, torch.searchsorted(held, kept))
            for dim, (kept, held) in enumerate(zip(inner[name], outer[name], strict=True))
            if len(kept) != len(held)
        ]
        for name in inner
    }
