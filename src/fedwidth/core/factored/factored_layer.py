"""A layer that is a product of two: `down` to some components of its weight, `up` to its outputs.

With all components the two compute what the one did, strided, dilated and grouped convolutions included.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedwidth.core.factored.convolution import Movement, keep_sizes
from fedwidth.core.factored.decomposition import SEPARABLE, from_matrices


class FactoredLayer(nn.Module):
    """A linear or convolution layer as two: `down` to the rank, `up` to the outputs."""

    def __init__(
        self, layer: nn.Module, reading: str, rows: int, rank: int, columns: int, *, decays: bool = False
    ) -> None:
        """`decays` says whether plain weight decay moves the factors too."""
        super().__init__()
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, nn.Parameter)
        assert bias is None or isinstance(bias, nn.Parameter)
        groups = getattr(layer, "groups", 1)
        self.up = nn.Parameter(weight.new_empty(groups, rows, rank), requires_grad=weight.requires_grad)
        self.down = nn.Parameter(weight.new_empty(groups, rank, columns), requires_grad=weight.requires_grad)
        self.up.decays = self.down.decays = decays  # type: ignore[attr-defined]
        self.bias = bias
        self.reading, self.shape, self.groups = reading, tuple(weight.shape), groups
        self.movement = Movement.of(layer)
        keep_sizes(self, layer)

    @property
    def weight(self) -> Tensor:
        """The product of the two, for models that look at a layer's weight themselves."""
        return from_matrices(self.up @ self.down, self.shape, self.reading)

    def forward(self, inputs: Tensor) -> Tensor:
        """Down, then up."""
        moves = self.movement
        if moves is None:
            return functional.linear(functional.linear(inputs, self.down[0]), self.up[0], self.bias)
        inputs = moves.pad(inputs)
        outputs, channels, *kernel = self.shape
        rank = self.down.shape[1]
        stride, padding, dilation = moves.stride, moves.padding, moves.dilation
        if self.reading == SEPARABLE and len(kernel) == 2:
            height, width = kernel
            down = self.down.reshape(self.groups * rank, channels, 1, width)
            up = self.up.reshape(self.groups, outputs // self.groups, height, rank).permute(0, 1, 3, 2)
            # Else convolutions take these strides for channels that lie last, and answer in that layout. A copy, not
            # `contiguous`: at rank 1 both layouts hold the same bytes, and the strides would stay.
            up = up.reshape(outputs, rank, height, 1).clone(memory_format=torch.contiguous_format)
            narrow = functional.conv2d(
                inputs, down, None, (1, stride[1]), (0, padding[1]), (1, dilation[1]), self.groups
            )
            return functional.conv2d(
                narrow, up, self.bias, (stride[0], 1), (padding[0], 0), (dilation[0], 1), self.groups
            )
        convolve = functional.conv1d if len(kernel) == 1 else functional.conv2d
        down = self.down.reshape(self.groups * rank, channels, *kernel)
        up = self.up.reshape(outputs, rank, *(1 for _ in kernel))
        narrow = convolve(inputs, down, None, stride, padding, dilation, self.groups)
        return convolve(narrow, up, self.bias, groups=self.groups)


def product_norm(module: nn.Module) -> Tensor:
    """The squared Frobenius norms of all products of factors, added up.

    By the factors' Gram matrices: |U V|^2 is the sum of (U'U) * (V V'), so no product of full size is made.
    """
    found = [layer for layer in module.modules() if isinstance(layer, FactoredLayer)]
    norms = [((f.up.mT @ f.up) * (f.down @ f.down.mT)).sum() for f in found]
    return torch.stack(norms).sum() if norms else next(module.parameters()).new_zeros(())
