"""A frozen layer and its adapter: W x + s B A x.

Modules and tensors have the names that `peft` gives them, so files of adapters can be exchanged.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

NAME = "default"
"""The name of the adapter, which `peft` leaves out in files."""


class AdapterLayer(nn.Module):
    """A linear or convolution layer that is frozen, and two thin ones beside it that are trained."""

    def __init__(
        self, layer: nn.Linear | nn.Conv1d | nn.Conv2d, rank: int, *, scale: float, outside: str, draws: torch.Generator
    ) -> None:
        """`scale` multiplies the product; A is drawn and B is 0, so that at first the layer computes what it did."""
        super().__init__()
        self.base_layer = layer
        self.outside = outside
        down, up = (thin.to(layer.weight.device, layer.weight.dtype) for thin in _thin_layers(layer, rank))
        for first, second in zip(down.parameters(), up.parameters(), strict=True):  # each has its weight alone
            draw(first, draws)
            nn.init.zeros_(second)
        self.lora_A, self.lora_B = nn.ModuleDict({NAME: down}), nn.ModuleDict({NAME: up})
        self.scaling = {NAME: scale}

    def forward(self, inputs: Tensor) -> Tensor:
        """What the frozen layer gives, and what the adapter adds."""
        frozen: Tensor = self.base_layer(inputs)
        added: Tensor = self.lora_B[NAME](self.lora_A[NAME](inputs))
        return frozen + self.scaling[NAME] * added

    @property
    def weight(self) -> Tensor:
        """The weight of both together, for models that look at a layer's weight themselves."""
        weight = self.base_layer.weight
        up, down = (next(held[NAME].parameters()) for held in (self.lora_B, self.lora_A))
        return weight + self.scaling[NAME] * (up.flatten(1) @ down.flatten(1)).reshape(weight.shape)

    @property
    def bias(self) -> Tensor | None:
        """The frozen layer's bias."""
        return self.base_layer.bias


def draw(down: Tensor, draws: torch.Generator) -> None:
    """Draw A in place: uniform within 1 / sqrt(inputs), as `peft` and `nn.Linear` do (Kaiming with a = sqrt(5))."""
    bound = 1 / math.sqrt(down[0].numel())
    with torch.no_grad():
        down.copy_((2 * torch.rand(down.shape, generator=draws) - 1) * bound)


def _thin_layers(layer: nn.Module, rank: int) -> tuple[nn.Module, nn.Module]:
    """From inputs to the rank, as the layer moves over its inputs, and from there to the outputs."""
    # They are drawn anew below: what these constructors draw must not move a caller's generator.
    with torch.random.fork_rng(devices=[]):
        if isinstance(layer, nn.Linear):
            return nn.Linear(layer.in_features, rank, bias=False), nn.Linear(rank, layer.out_features, bias=False)
        assert isinstance(layer, nn.Conv1d | nn.Conv2d)
        made = nn.Conv1d if isinstance(layer, nn.Conv1d) else nn.Conv2d
        down = made(
            layer.in_channels,
            rank,
            layer.kernel_size,  # type: ignore[arg-type]
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            layer.dilation,  # type: ignore[arg-type]
            bias=False,
            padding_mode=layer.padding_mode,
        )
        return down, made(rank, layer.out_channels, 1, bias=False)
