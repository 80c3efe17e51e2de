"""Layers whose stacked form is better than the one vmap finds by itself.

Batch norm: one with the channels of all clients. vmap would take scale and shift out of the kernel, and pass over the
memory for each.

Convolution, on GPUs: vmap makes one with a group for each client. The kernels for groups of a few channels are slow,
and some are launched group by group. So neighbours are merged into one group, whose weights are their own on the
diagonal and 0 elsewhere: more arithmetic, which narrow models leave room for, and the same sums but for zeros. Only
what is not finite passes from one to the other, since 0 times infinity is no number: who finds such a thing must train
again unmerged to know whose it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedwidth.models import StaticBatchNorm2d

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

BEST_CHANNELS = 32
"""The number of channels that a group of merged clients should have. PreResNet18's first layers at 1/16 of their width,
64 clients, forward and backward pass on an H200: 0.15 ms with 32 channels, 0.25 with 64, 0.41 with the 4 of one
client."""

MAX_CHANNELS = 1024
"""The number of channels up to which clients are merged in convolutions with strides or of one pixel: cuDNN launches
kernels for each of their groups, and they are few and small."""

STACK_ROWS = (10, 20)
"""The number of clients that a stack may have room for. 60 of PreResNet18 on an H200, bf16, batch 64, ms for a step in
stacks of 10, 20, 30 and 60: 19.1, 13.7, 20.3 and 12.6 at 1/8 (8 channels: four make 32, which only 20 and 60 allow),
10.3 and 11.7 with 10 and 20 at 1/16 (4 channels: neither allows eight)."""


def can_stack_layers(model: nn.Module) -> bool:
    """Whether a model gains from stacked layers: it convolves, and has nothing recurrent, which vmap takes apart."""
    layers = list(model.modules())
    return any(isinstance(m, nn.Conv2d) for m in layers) and not any(isinstance(m, nn.RNNBase) for m in layers)


def stack_layers(module: nn.Module, *, merge: bool) -> nn.Module:
    """Give a module's batch norms that keep nothing and, with `merge`, its convolutions their stacked form.

    That is done for the classes of PyTorch and fedwidth themselves: one derived from them may do anything. A layer
    becomes stacked by a change of its class, so that it keeps its parameters, its settings and its name in the module.
    """
    for layer in module.modules():
        if type(layer) is StaticBatchNorm2d and layer.training:
            layer.__class__ = _StackedStaticNorm
        elif type(layer) in NORMS and layer.affine and not layer.track_running_stats:
            layer.__class__ = _StackedNorm
        elif merge and type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros":
            layer.__class__ = _StackedConvolution
    module.has_stacked_layers = True  # type: ignore[assignment]
    return module


def has_stacked_layers(module: nn.Module) -> bool:
    """Whether a module's layers have their stacked form: then only plain autograd knows their gradients."""
    return getattr(module, "has_stacked_layers", False)


def clients_per_group(clients: int, outputs: int, inputs: int, *, most: bool = False) -> int:
    """How many neighbours share a group of a convolution: a divisor of their number.

    It leads near to `BEST_CHANNELS`, or with `most` as far as `MAX_CHANNELS`.

    >>> clients_per_group(64, 4, 4), clients_per_group(64, 16, 16), clients_per_group(64, 64, 64)
    (8, 2, 1)
    >>> clients_per_group(7, 4, 4), clients_per_group(10, 64, 32, most=True)
    (7, 10)
    """
    divisors = [m for m in range(1, clients + 1) if clients % m == 0]
    if most:
        return max(m for m in divisors if m == 1 or m * max(outputs, inputs) <= MAX_CHANNELS)
    return min(divisors, key=lambda m: (_off_best(m * min(outputs, inputs)), m))


def stack_rows(shapes: Iterable[Sequence[int]]) -> int:
    """The number of clients in a stack with which the narrowest convolution among tensors of these shapes merges best.

    >>> stack_rows([(4, 3, 3, 3), (8, 4, 3, 3)]), stack_rows([(8, 3, 3, 3), (16, 8, 3, 3)]), stack_rows([(16, 3, 3, 3)])
    (10, 20, 10)
    """
    narrowest = min((shape[0] for shape in shapes if len(shape) == 4), default=BEST_CHANNELS)
    return min(
        STACK_ROWS, key=lambda rows: (_off_best(narrowest * clients_per_group(rows, narrowest, narrowest)), rows)
    )


def _off_best(channels: int) -> float:
    """How far a number of channels is from the best one, in powers of two."""
    return abs(math.log2(channels / BEST_CHANNELS))


class _StackedNorm(_BatchNorm):
    """PyTorch's batch norm without statistics, as one norm with the channels of all clients."""

    def forward(self, input: Tensor) -> Tensor:
        found: Tensor = _Normalise.apply(input, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        return found


class _StackedStaticNorm(StaticBatchNorm2d):
    """A static batch norm in training, as one norm with the channels of all clients."""

    def forward(self, x: Tensor) -> Tensor:
        epsilon = self.eps * self.rate**2  # why: see there
        found: Tensor = _Normalise.apply(x, self.weight, self.bias, epsilon)  # type: ignore[no-untyped-call]
        return found


class _StackedConvolution(nn.Conv2d):
    """A convolution in which neighbouring clients share a group."""

    def forward(self, input: Tensor) -> Tensor:
        how = (self.stride, self.padding, self.dilation)
        found: Tensor = _Convolve.apply(input, self.weight, self.bias, how)  # type: ignore[no-untyped-call]
        return found


class _WithRule(torch.autograd.Function):
    """A function with a rule of its own for vmap. The rule calls what has gradients already, so it keeps nothing."""

    @staticmethod
    def setup_context(_ctx: Any, _inputs: Any, _output: Any) -> None:
        """Keep nothing for the backward pass."""


class _Normalise(_WithRule):
    """Batch normalisation of one client, or of all as one with the channels of all."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        return F.batch_norm(x, None, None, weight, bias, training=True, eps=epsilon)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, int]:
        x, weight, bias = _first(info.batch_size, in_dims, x, weight, bias)
        y = F.batch_norm(_side_by_side(x), None, None, weight.flatten(), bias.flatten(), training=True, eps=epsilon)
        return torch.unflatten(y, 1, (info.batch_size, -1)), 1


class _Convolve(_WithRule):
    """A convolution of one client, or of all as one with a group for each few neighbours."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, how: Any) -> Tensor:
        stride, padding, dilation = how
        return F.conv2d(x, weight, bias, stride, padding, dilation)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: Any) -> tuple[Tensor, int]:
        clients = info.batch_size
        x, weight = _first(clients, in_dims, x, weight)
        if bias is not None:
            bias = _first(clients, in_dims[2:], bias)[0].flatten()
        stride, padding, dilation = how
        launched_by_group = any(n > 1 for n in stride) or weight[0, 0, 0].numel() == 1
        together = clients_per_group(clients, *weight.shape[1:3], most=launched_by_group)
        weight = _diagonal(weight, together)
        y = F.conv2d(_side_by_side(x), weight, bias, stride, padding, dilation, clients // together)
        return torch.unflatten(y, 1, (clients, -1)), 1


def _diagonal(weight: Tensor, together: int) -> Tensor:
    """[clients, out, in, height, width] as the weights of a convolution in which so many neighbours share a group."""
    if together == 1:
        return weight.flatten(0, 1)
    own = torch.unflatten(weight, 0, (-1, together)).movedim(1, -1)  # [groups, out, in, height, width, together]
    # [groups, together, out, together, in, height, width], where the two numbers agree
    return torch.diag_embed(own, dim1=1, dim2=3).flatten(3, 4).flatten(0, 2)


def _first(clients: int, dims: Any, *tensors: Tensor) -> list[Tensor]:
    """The tensors with the clients as their first axis."""
    return [
        tensor.expand(clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, dims[: len(tensors)], strict=True)
    ]


def _side_by_side(x: Tensor) -> Tensor:
    """[clients, samples, channels, …] as [samples, clients x channels, …]."""
    return x.movedim(0, 1).flatten(1, 2)
