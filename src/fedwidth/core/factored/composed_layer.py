"""A layer whose kernel is composed of a basis of small kernels, which layers of every width have in common.

    W[o, g n + j] = sum over b of u[o, g m + b] V[b, j]        g = groups of n inputs

V is the basis, m kernels over n inputs; u are the layer's own coefficients.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedwidth.core.factored.convolution import Movement, keep_sizes


def compose(basis: Tensor, coefficients: Tensor) -> Tensor:
    """The kernel W of a basis [m, n, kernel] and coefficients [outputs, groups * m]."""
    bases, own, *kernel = basis.shape
    outputs, columns = coefficients.shape
    groups = columns // bases
    flat = coefficients.reshape(outputs, groups, bases) @ basis.reshape(bases, -1)
    return flat.reshape(outputs, groups * own, *kernel)


def orthogonal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Kernels that are orthogonal and of length 1; where there are more than dimensions, their columns are."""
    rows, columns = shape[0], math.prod(shape[1:])
    drawn = torch.randn(max(rows, columns), min(rows, columns), generator=generator)
    found: Tensor = torch.linalg.qr(drawn)[0]
    return (found.T if rows < columns else found).reshape(shape).contiguous()


def skewness(basis: Tensor) -> Tensor:
    """How far a basis is from an orthogonal one: mean((B B' - I)^2), B being its kernels as rows."""
    rows = basis.flatten(1)
    return (rows @ rows.T - torch.eye(len(rows), dtype=rows.dtype, device=rows.device)).square().mean()


class ComposedLayer(nn.Module):
    """A linear or convolution layer with a composed kernel."""

    def __init__(self, layer: nn.Module, basis: tuple[int, ...]) -> None:
        super().__init__()
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, nn.Parameter)
        assert bias is None or isinstance(bias, nn.Parameter)
        groups = weight.shape[1] // basis[1]
        self.basis = nn.Parameter(weight.new_empty(basis), requires_grad=weight.requires_grad)
        self.coefficients = nn.Parameter(
            weight.new_empty(weight.shape[0], groups * basis[0]), requires_grad=weight.requires_grad
        )
        self.bias = bias
        self.movement = Movement.of(layer)
        keep_sizes(self, layer)

    @property
    def weight(self) -> Tensor:
        """The composed kernel."""
        return compose(self.basis, self.coefficients)

    def forward(self, inputs: Tensor) -> Tensor:
        """What the layer with the composed kernel gives."""
        moves = self.movement
        if moves is None:
            return functional.linear(inputs, self.weight, self.bias)
        convolve = functional.conv1d if self.basis.dim() == 3 else functional.conv2d
        return convolve(moves.pad(inputs), self.weight, self.bias, moves.stride, moves.padding, moves.dilation)
