"""How a convolution moves over its inputs, for layers that take the place of one and compute its weights otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

SIZES = ("in_features", "out_features", "in_channels", "out_channels", "kernel_size")


@dataclass(frozen=True)
class Movement:
    """Strides, dilation and padding of a convolution."""

    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    """Zeros on both sides, which the convolution adds itself."""
    pads: tuple[int, ...] = ()
    """What must be padded beforehand, because the convolution cannot: numbers as `functional.pad` takes them."""
    mode: str = "constant"

    @classmethod
    def of(cls, layer: nn.Module) -> Movement | None:
        """That of a layer; None for a linear one."""
        convolution: Any = layer
        if not hasattr(layer, "stride"):
            return None
        stride, dilation, padding = convolution.stride, convolution.dilation, convolution.padding
        if not isinstance(padding, str) and convolution.padding_mode == "zeros":
            return cls(stride, dilation, padding)
        mode = "constant" if convolution.padding_mode == "zeros" else convolution.padding_mode
        pads = tuple(convolution._reversed_padding_repeated_twice)
        return cls(stride, dilation, (0,) * len(stride), pads, mode)

    def pad(self, inputs: Tensor) -> Tensor:
        """Inputs with the padding that convolutions do not add themselves."""
        return functional.pad(inputs, self.pads, mode=self.mode) if self.pads else inputs


def keep_sizes(made: nn.Module, layer: nn.Module) -> None:
    """Give a layer that takes the place of another its sizes, which models may read in their forward pass."""
    for name in SIZES:
        if hasattr(layer, name):
            setattr(made, name, getattr(layer, name))
