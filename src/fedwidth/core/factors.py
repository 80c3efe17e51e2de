"""Weights as products of two factors: what clients of low-rank methods hold instead of slices.

A weight is read as a matrix (a grouped convolution as one for each group), and the matrix as a sum of components of
rank one, by its singular value decomposition:

    W = sum over i of u_i v_i,   u_i the left singular vector times sqrt(sigma_i), v_i the right one times the same

A client holds some components: `down` has its v_i as rows, `up` its u_i as columns, and a layer of two takes the place
of one. A convolution is read in one of two ways:

    separable    (output, height) x (input, width): a 1 x k convolution, then a k x 1 one (FedHM)
    channels     output x (input, height, width): a k x k convolution, then a 1 x 1 one (PriSM)

With all components the two layers compute what the one did, strided, dilated and grouped convolutions included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from fedwidth.core.cohort import CohortSum
from fedwidth.core.cost import Cost, cost_of
from fedwidth.core.index import Index
from fedwidth.core.narrow import skeleton
from fedwidth.core.running_mean import accumulable, interpolate
from fedwidth.core.updates import Update
from fedwidth.errors import StateError
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
    size = 1
    for length in kernel:
        size *= length
    return groups, outputs // groups, inputs * size


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
        left, values, right = torch.linalg.svd(exact, full_matrices=False)
        roots = values.sqrt()
        up, down = left * roots[:, None, :], roots[:, :, None] * right
        known[groups, reading] = up.to(weight.dtype), down.to(weight.dtype), values.to(weight.dtype)
    found: tuple[Tensor, Tensor, Tensor] = known[groups, reading]
    return found


def factor_names(weight: str) -> tuple[str, str]:
    """What the two factors of a weight are called: the names of its module's `up` and `down`."""
    module = weight.removesuffix("weight")
    return f"{module}up", f"{module}down"


@dataclass(frozen=True, eq=False)
class Factors:
    """A part of the model in which some layers are products of two factors."""

    plan: Plan | None = field(repr=False)
    """None in worker processes, which have a plan of their own."""
    reading: str
    components: Mapping[str, tuple[int, ...]]
    """For each factored weight which of its components the client holds, in rising order; other tensors are whole."""
    keeps_factors: bool = False
    """Whether the mean of clients' factors is wanted beside the mean of their products."""

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": None, **{name: vars(self)[name] for name in ("reading", "components", "keeps_factors")}}

    @cached_property
    def key(self) -> str:
        """Clients with the same components hold the same."""
        text = f"{self.reading} {self.keeps_factors} {sorted(self.components.items())}"
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def size(self) -> Hashable:
        """The number of components of each factored weight."""
        return self.reading, tuple((name, len(held)) for name, held in sorted(self.components.items()))

    @property
    def number_of_units(self) -> int:
        """How many components it holds."""
        return sum(len(held) for held in self.components.values())

    @property
    def is_whole(self) -> bool:
        """It is never the global model itself: at least one layer is a product."""
        return False

    def cut(self, state: Mapping[str, Tensor], plan: Plan) -> dict[str, Tensor]:
        """The tensors the client is sent: factors, and copies of all that is not factored."""
        plan.check_state(state)
        sub = {name: tensor.detach().clone() for name, tensor in state.items() if name not in self.components}
        for weight, held in self.components.items():
            up, down, _ = decompose(state[weight], plan.layers[weight], self.reading)
            numbers = torch.tensor(held, device=up.device)
            sub |= dict(zip(factor_names(weight), (up[:, :, numbers], down[:, numbers]), strict=True))
        return sub

    def module(self, model: nn.Module, plan: Plan) -> nn.Module:
        """The model with two layers in place of each factored one."""
        made = skeleton(model, plan, {})
        for weight, held in self.components.items():
            name = weight.removesuffix(".weight")
            rows, columns = matrix_shape(plan, weight, self.reading)[1:]
            made.set_submodule(name, FactoredLayer(made.get_submodule(name), self.reading, rows, len(held), columns))
        return made

    def accumulator(self) -> FactorSum:
        """An empty sum for the updates of its clients."""
        return FactorSum(self)

    def products(self, sub: Mapping[str, Tensor], plan: Plan) -> dict[str, Tensor]:
        """A sub-model with its factors multiplied, in the full model's names and shapes."""
        whole: dict[str, Tensor] = {}
        for weight in self.components:
            up, down = (sub.get(name) for name in factor_names(weight))
            if up is None or down is None:
                raise StateError(f"the sub-model lacks the factors of '{weight}'")
            whole[weight] = from_matrices(up @ down, plan.shapes[weight], self.reading)
        factors = {name for weight in self.components for name in factor_names(weight)}
        return whole | {name: tensor for name, tensor in sub.items() if name not in factors}

    def cost(self, model: nn.Module, plan: Plan, example: Any, *, capacity: float) -> Cost:
        """What it costs a device."""
        return cost_of(lambda: self.module(model, plan), plan, example, capacity=capacity)


class FactorSum(CohortSum):
    """The weighted mean of clients' products, and where it is wanted of their factors."""

    def __init__(self, part: Factors) -> None:
        assert part.plan is not None, "sums are made where the plan is"
        super().__init__(Index.whole(part.plan))
        self.part, self.total = part, 0.0
        self.factors: dict[str, Tensor] = {}
        """The mean of each factor by name, where the part keeps them."""

    def add(self, update: Update, *, copy: bool = True) -> None:
        """Add one client's update; the sum is unchanged if the update is refused."""
        plan = self.index.plan
        super().add(replace(update, sub=self.part.products(update.sub, plan), index=self.index), copy=copy)
        if not self.part.keeps_factors:
            return
        self.total += update.weight
        for weight in self.part.components:
            for name in factor_names(weight):
                value = accumulable(update.sub[name].detach())
                if name in self.factors:
                    interpolate(self.factors[name], value, update.weight / self.total)
                else:
                    self.factors[name] = value.clone()


class FactoredLayer(nn.Module):
    """A linear or convolution layer as two: `down` to the rank, `up` to the outputs."""

    def __init__(self, layer: nn.Module, reading: str, rows: int, rank: int, columns: int) -> None:
        super().__init__()
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, nn.Parameter)
        assert bias is None or isinstance(bias, nn.Parameter)
        groups = getattr(layer, "groups", 1)
        self.up = _unregularised(weight.new_empty(groups, rows, rank), weight.requires_grad)
        self.down = _unregularised(weight.new_empty(groups, rank, columns), weight.requires_grad)
        self.bias = bias
        self.reading, self.shape, self.groups = reading, tuple(weight.shape), groups
        keep_sizes(self, layer)
        convolution: Any = layer
        self.stride: Shape = getattr(convolution, "stride", ())
        self.dilation: Shape = getattr(convolution, "dilation", ())
        self.padding: Any = getattr(convolution, "padding", ())
        self.pads: Shape = ()
        self.mode = "constant"
        if isinstance(self.padding, str) or getattr(convolution, "padding_mode", "zeros") != "zeros":
            self.pads = tuple(convolution._reversed_padding_repeated_twice)
            self.mode = "constant" if convolution.padding_mode == "zeros" else convolution.padding_mode
            self.padding = (0,) * len(self.stride)

    @property
    def weight(self) -> Tensor:
        """The product of the two, for models that look at a layer's weight themselves."""
        return from_matrices(self.up @ self.down, self.shape, self.reading)

    def forward(self, inputs: Tensor) -> Tensor:
        """Down, then up."""
        if not self.stride:
            return functional.linear(functional.linear(inputs, self.down[0]), self.up[0], self.bias)
        if self.pads:
            inputs = functional.pad(inputs, self.pads, mode=self.mode)
        outputs, channels, *kernel = self.shape
        rank = self.down.shape[1]
        stride, padding, dilation = self.stride, self.padding, self.dilation
        if self.reading == SEPARABLE and len(kernel) == 2:
            height, width = kernel
            down = self.down.reshape(self.groups * rank, channels, 1, width)
            up = self.up.reshape(self.groups, outputs // self.groups, height, rank).permute(0, 1, 3, 2)
            # Else convolutions take these strides for channels that lie last, and answer in that layout.
            up = up.reshape(outputs, rank, height, 1).contiguous()
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


def keep_sizes(made: nn.Module, layer: nn.Module) -> None:
    """Give a layer that takes the place of another its sizes, which models may read in their forward pass."""
    for name in ("in_features", "out_features", "in_channels", "out_channels", "kernel_size"):
        if hasattr(layer, name):
            setattr(made, name, getattr(layer, name))


def product_norm(module: nn.Module) -> Tensor:
    """The squared Frobenius norms of all products of factors, added up.

    By the factors' Gram matrices: |U V|^2 is the sum of (U'U) * (V V'), so no product of full size is made.
    """
    found = [layer for layer in module.modules() if isinstance(layer, FactoredLayer)]
    norms = [((f.up.mT @ f.up) * (f.down @ f.down.mT)).sum() for f in found]
    return torch.stack(norms).sum() if norms else next(module.parameters()).new_zeros(())


def _unregularised(tensor: Tensor, requires_grad: bool) -> nn.Parameter:
    """A parameter that plain weight decay leaves alone: products are regularised, not their factors."""
    made = nn.Parameter(tensor, requires_grad=requires_grad)
    made.decays = False  # type: ignore[attr-defined]
    return made
