"""Narrower sub-models inside the one that a client trains, where its rule draws a width at every local step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedwidth.core.index import Index
from fedwidth.methods import Task
from fedwidth.objectives import arguments
from fedwidth.randomness import numpy_generator

if TYPE_CHECKING:
    from fedwidth.training.client import Trainer

Slices = dict[str, list[tuple[int, Tensor]]]
"""By the name of a tensor, the dimensions it is cut in, and which of the client's positions are kept there."""


def draw_widths(trainer: Trainer, task: Task, round: int) -> Iterator[float]:
    """The width of each step of a client, without end: drawn from (seed, round, client), or always its capacity."""
    widths = trainer.rule.local.widths
    if widths is None:
        return repeat(task.capacity)
    generator = numpy_generator(trainer.settings.seed, "width", round, task.client)
    choices = list(widths(task.capacity, trainer.rule.options))
    return (float(generator.choice(choices)) for _ in repeat(None))


def narrower_index(trainer: Trainer, width: float, round: int) -> Index:
    """What the sub-model of this width holds in a round; it lies inside those of wider clients."""
    found: Index = trainer.method.select(trainer.plan, capacity=width, round=round, seed=trainer.settings.seed)
    return found


class Narrower:
    """A narrower sub-model inside the one in another module: its weights are slices of the other's."""

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
