"""Weights as matrices, and matrices as sums of components of rank one.

A weight is read as a matrix (a grouped convolution as one for each group), and the matrix by its singular value
decomposition:

    W = sum over i of u_i v_i,   u_i the left singular vector times sqrt(sigma_i), v_i the right one times the same

A convolution is read in one of two ways:

    separable    (output, height) x (input, width): a 1 x k convolution, then a k x 1 one (FedHM)
    channels     output x (input, height, width): a k x k convolution, then a 1 x 1 one (PriSM)
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fedwidth.plan.axis import groups_of
from fedwidth.plan.plan import Plan

SEPARABLE, CHANNELS = "separable", "channels"
Shape = tuple[int, ...]

_DECOMPOSED: Any = WeakTensorKeyDictionary()
"""Decompositions of the weights that are still in use: the clients of a round share them."""


def hidden_layers(plan: Plan) -> list[str]:
    """The weights that may be factored, in the model's order: of linear and convolution layers that neither take the
    model's input nor give its output."""
    inner = [name for name in plan.layers if all(groups_of(axis) for axis in plan.axes[name][:2])]
    return [name for name in inner if len(plan.shapes[name]) <= 4]


def matrix_shape(plan: Plan, weight: str, reading: str) -> Shape:
    """(groups, rows, columns) of a weight that is read as matrices."""
    (outputs, inputs, *kernel), groups = plan.shapes[weight], plan.layers[weight]
    if reading == SEPARABLE and len(kernel) == 2:
        return groups, outputs // groups * kernel[0], inputs * kernel[1]
    return groups, outputs // groups, inputs * math.prod(kernel)


def to_matrices(weight: Tensor, groups: int, reading: str) -> Tensor:
    """A weight as matrices [groups, rows, columns]."""
    outputs, inputs, *kernel = weight.shape
    if reading == SEPARABLE and len(kernel) == 2:
        height, width = kernel
        parts = weight.reshape(groups, outputs // groups, inputs, height, width).permute(0, 1, 3, 2, 4)
        return parts.reshape(groups, outputs // groups * height, inputs * width)
    return weight.reshape(groups, outputs // groups, -1)


def from_matrices(matrices: Tensor, shape: Shape, reading: str) -> Tensor:
    """The weight of this shape: the inverse of `to_matrices`."""
    outputs, inputs, *kernel = shape
    if reading == SEPARABLE and len(kernel) == 2:
        height, width = kernel
        groups = len(matrices)
        parts = matrices.reshape(groups, outputs // groups, height, inputs, width).permute(0, 1, 3, 2, 4)
        return parts.reshape(shape)
    return matrices.reshape(shape)


def decompose(weight: Tensor, groups: int, reading: str) -> tuple[Tensor, Tensor, Tensor]:
    """(up [groups, rows, rank], down [groups, rank, columns], singular values [groups, rank]) of a weight.

    The values are in falling order. Each weight is decomposed once for as long as it is in use.
    """
    known = _DECOMPOSED.setdefault(weight, {})
    if (groups, reading) not in known:
        exact = to_matrices(weight.detach(), groups, reading).double()
        left, values, right = by_gram(exact) if exact.is_cuda else torch.linalg.svd(exact, full_matrices=False)
        roots = values.sqrt()
        up, down = left * roots[:, None, :], roots[:, :, None] * right
        known[groups, reading] = up.to(weight.dtype), down.to(weight.dtype), values.to(weight.dtype)
    found: tuple[Tensor, Tensor, Tensor] = known[groups, reading]
    return found


def by_gram(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The singular value decomposition, as `torch.linalg.svd(full_matrices=False)` gives it, by the eigenvectors of the
    smaller Gram matrix.

    On a GPU it is much faster, and a sum of all components is as exact. Vectors of values below 1e-8 of the largest are
    not those of single values: which is why it is for float64.
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        right, values, left = by_gram(matrices.mT)
        return left.mT, values, right.mT
    left = torch.linalg.eigh(matrices @ matrices.mT).eigenvectors
    right = left.mT @ matrices
    values, order = torch.linalg.vector_norm(right, dim=-1).sort(descending=True)
    left = left.take_along_dim(order[..., None, :], -1)
    right = right.take_along_dim(order[..., :, None], -2) / values.clamp(min=torch.finfo(values.dtype).tiny)[..., None]
    return left, values, right
