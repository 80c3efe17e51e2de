"""FLANC: all widths share a basis, and every width combines it in its own way (Mei et al. 2022).

The kernel of an inner layer is composed of a basis V of m small kernels over n inputs, the same for every width, and
coefficients u of the width:

    W[o, g n + j] = sum over b of u[o, g m + b] V[b, j]        g = groups of n inputs

A client trains both, and minimises loss + penalty * sum over layers of mean((B B' - I)^2), B being V as m rows, so that
the basis stays orthogonal. The server averages V over all clients, and everything else (coefficients, norms, first and
last layer) over the clients of one width: there are as many such sets as enrolled widths, and no model that is wider
than the widest device. A width without clients in a round stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedwidth.core.cost import Cost, cost_of
from fedwidth.core.factors import hidden_layers, keep_sizes
from fedwidth.core.index import Index
from fedwidth.core.narrow import skeleton
from fedwidth.core.running_mean import accumulable, interpolate
from fedwidth.core.submodel import extract
from fedwidth.core.updates import Update, check_finite
from fedwidth.errors import OptionError, UpdateError
from fedwidth.methods.definition import (
    Beginning,
    ClientPass,
    Closing,
    Local,
    Memory,
    Method,
    Moment,
    Option,
    is_number,
    is_share,
    named,
    under,
)
from fedwidth.plan.plan import Plan
from fedwidth.randomness import torch_generator

BASIS, WIDTH = "basis", "width"
"""What the server remembers: the basis of every composed weight, and the other tensors of every width."""


def widths_of(enrolled: Sequence[float]) -> list[float]:
    """The widths there are sets of tensors for; the widest is the whole model."""
    widths = sorted({float(width) for width in enrolled})
    if widths[-1] != 1:
        raise OptionError(
            f"flanc has no model that is wider than the widest device, which has {widths[-1]:g}: give a device capacity"
            " 1, or set model.width to the widest"
        )
    return widths


def prefix(plan: Plan, width: float) -> Index:
    """The first units of every group: where the tensors of a width are cut from in the beginning."""
    return Index.of_units(plan, {name: torch.arange(count) for name, count in plan.counts(width).items()})


def composed(plan: Plan) -> list[str]:
    """The weights that are composed: of inner layers with one group of channels."""
    return [name for name in hidden_layers(plan) if plan.layers[name] == 1]


def basis_shape(plan: Plan, weight: str, widths: Sequence[float], options: Mapping[str, Any]) -> tuple[int, ...]:
    """(m, n, kernel): n is the largest number up to the share asked for that divides the inputs of every width."""
    outputs, inputs, *kernel = plan.shapes[weight]
    common = math.gcd(*(plan.narrow_shapes(plan.counts(width))[weight][1] for width in widths))
    most = max(1, int(options["basis_fraction"] * inputs))
    own = max(n for n in range(1, common + 1) if common % n == 0 and n <= most)
    return max(1, int(options["bases"] * outputs)), own, *kernel


def init(beginning: Beginning) -> dict[str, Tensor]:
    """An orthogonal basis for every composed weight, and for every width its tensors, coefficients at random."""
    plan, widths = beginning.plan, widths_of(beginning.enrolled)
    memory, bases = {}, {}
    for number, weight in enumerate(composed(plan)):
        shape = basis_shape(plan, weight, widths, beginning.options)
        generator = torch_generator(beginning.seed, "basis", number)
        bases[weight] = orthogonal(shape, generator).to(beginning.state[weight])
    memory = named(BASIS, bases)
    for place, width in enumerate(widths):
        index = prefix(plan, width)
        tensors = {n: t.clone() for n, t in extract(beginning.state, plan, index).items() if n not in bases}
        for number, (weight, basis) in enumerate(bases.items()):
            outputs, inputs = index.shapes[weight][:2]
            columns = inputs // basis.shape[1] * basis.shape[0]
            bound = 1 / math.sqrt(columns)  # as PyTorch begins a 1 x 1 convolution
            generator = torch_generator(beginning.seed, "coefficients", place, number)
            drawn = torch.rand(outputs, columns, generator=generator) * 2 * bound - bound
            tensors[coefficient_name(weight)] = drawn.to(basis)
        memory |= named(f"{WIDTH}.{width:g}", tensors)
    return memory


def orthogonal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Kernels that are orthogonal and of length 1; where there are more than dimensions, their columns are."""
    rows, columns = shape[0], math.prod(shape[1:])
    drawn = torch.randn(max(rows, columns), min(rows, columns), generator=generator)
    found: Tensor = torch.linalg.qr(drawn)[0]
    return (found.T if rows < columns else found).reshape(shape).contiguous()


def coefficient_name(weight: str) -> str:
    """What the coefficients of a composed weight are called."""
    return weight.removesuffix("weight") + "coefficients"


def basis_name(weight: str) -> str:
    """What the basis of a composed weight is called in a client's module."""
    return weight.removesuffix("weight") + "basis"


def compose(basis: Tensor, coefficients: Tensor) -> Tensor:
    """The kernel W of a basis [m, n, kernel] and coefficients [outputs, groups * m]."""
    bases, own, *kernel = basis.shape
    outputs, columns = coefficients.shape
    groups = columns // bases
    flat = coefficients.reshape(outputs, groups, bases) @ basis.reshape(bases, -1)
    return flat.reshape(outputs, groups * own, *kernel)


def start(beginning: Beginning) -> dict[str, Tensor]:
    """The model of the widest devices, composed."""
    return whole_model(init(beginning), beginning.state)


def whole_model(memory: Memory, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The full-width model out of the memory; other names of a tensor follow it."""
    bases, tensors = under(memory, BASIS), under(memory, f"{WIDTH}.1")
    found = {n: compose(b, tensors[coefficient_name(n)]) for n, b in bases.items()}
    return {name: found.get(name, tensors.get(name, tensor)).to(tensor) for name, tensor in state.items()}


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> Composition:
    """The model of the client's width, its inner kernels composed."""
    del counts
    width = float(at.capacity)
    if not under(at.memory, f"{WIDTH}.{width:g}"):
        raise OptionError(f"flanc keeps a model for each enrolled width, and has none of {width:g}")
    tensors = under(at.memory, f"{WIDTH}.{width:g}")
    units = sum(tensors[coefficient_name(weight)].numel() for weight in under(at.memory, BASIS))
    return Composition(plan, width, max(1, units), at.memory)


@dataclass(frozen=True, eq=False)
class Composition:
    """A narrow model whose inner kernels are composed of the common basis."""

    plan: Plan | None = field(repr=False)
    width: float
    number_of_units: int
    """How many coefficients it has."""
    memory: Memory = field(repr=False, default_factory=dict)
    """What the server remembers; it and the plan stay behind when a part goes to worker processes."""

    def __getstate__(self) -> dict[str, Any]:
        bases = {name: tensor.to("meta") for name, tensor in under(self.memory, BASIS).items()}
        known = {"width": self.width, "number_of_units": self.number_of_units}
        return {"plan": None, "memory": named(BASIS, bases), **known}

    @property
    def key(self) -> str:
        """Clients of one width hold the same."""
        return f"flanc {self.width:g}"

    @property
    def size(self) -> Hashable:
        """Its width."""
        return self.key

    @property
    def is_whole(self) -> bool:
        """It is never the global model itself: kernels are composed."""
        return False

    def cut(self, state: Mapping[str, Tensor], plan: Plan) -> dict[str, Tensor]:
        """The tensors of the width, and the basis."""
        del state, plan
        bases = {basis_name(weight): basis for weight, basis in under(self.memory, BASIS).items()}
        tensors = under(self.memory, f"{WIDTH}.{self.width:g}") | bases
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def module(self, model: nn.Module, plan: Plan) -> nn.Module:
        """The narrow model with composed layers in place of plain ones."""
        made = skeleton(model, plan, plan.counts(self.width))
        for weight, basis in under(self.memory, BASIS).items():
            name = weight.removesuffix(".weight")
            made.set_submodule(name, ComposedLayer(made.get_submodule(name), tuple(basis.shape)))
        return made

    def accumulator(self) -> WidthSum:
        """An empty sum for the updates of its clients."""
        return WidthSum(self)

    def cost(self, model: nn.Module, plan: Plan, example: Any, *, capacity: float) -> Cost:
        """What it costs a device."""
        return cost_of(lambda: self.module(model, plan), plan, example, capacity=capacity)


class WidthSum:
    """The weighted mean of the models of one width."""

    def __init__(self, part: Composition) -> None:
        self.part, self.weight, self.clients = part, 0.0, 0
        self.mean: dict[str, Tensor] = {}
        self.reports: dict[str, Any] = {}

    def add(self, update: Update, *, copy: bool = True) -> None:
        """Add one client's update; the sum is unchanged if the update is refused."""
        del copy
        expected = self.part.cut({}, self.part.plan) if not self.mean else self.mean  # type: ignore[arg-type]
        for name, tensor in expected.items():
            if name not in update.sub or update.sub[name].shape != tensor.shape:
                raise UpdateError(f"{update.who} lacks '{name}' of shape {list(tensor.shape)}")
        check_finite(update.sub, update.who)
        self.weight += update.weight
        self.clients += 1
        for name in expected:
            value = accumulable(update.sub[name].detach())
            if name in self.mean:
                interpolate(self.mean[name], value, update.weight / self.weight)
            else:
                self.mean[name] = value.clone()


class ComposedLayer(nn.Module):
    """A linear or convolution layer whose kernel is composed: each group of inputs through the basis, then mixed."""

    def __init__(self, layer: nn.Module, basis: tuple[int, ...]) -> None:
        super().__init__()
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, nn.Parameter)
        assert bias is None or isinstance(bias, nn.Parameter)
        groups = weight.shape[1] // basis[1]
        self.basis = nn.Parameter(weight.new_empty(basis))
        self.coefficients = nn.Parameter(weight.new_empty(weight.shape[0], groups * basis[0]))
        self.bias = bias
        keep_sizes(self, layer)
        self.convolution: dict[str, Any] = {
            name: getattr(layer, name) for name in ("stride", "dilation", "padding") if hasattr(layer, name)
        }
        if getattr(layer, "padding_mode", "zeros") != "zeros":
            raise OptionError(f"flanc cannot compose a convolution with padding_mode '{layer.padding_mode}'")

    @property
    def weight(self) -> Tensor:
        """The composed kernel."""
        return compose(self.basis, self.coefficients)

    def forward(self, inputs: Tensor) -> Tensor:
        """What the composed kernel gives: one product where that is cheap, else the layer with the composed kernel."""
        if not self.convolution:
            return functional.linear(inputs, self.weight, self.bias)
        convolve = functional.conv1d if self.basis.dim() == 3 else functional.conv2d
        return convolve(inputs, self.weight, self.bias, **self.convolution)


def loss(client: ClientPass, inputs: Tensor, targets: Tensor) -> Tensor:
    """The plain loss, and how far the bases are from orthogonal ones."""
    plain = client.loss(client.logits(inputs), targets)
    layers = [layer for layer in client.network().modules() if isinstance(layer, ComposedLayer)]
    if not layers:
        return plain
    return plain.add(torch.stack([skewness(layer.basis) for layer in layers]).sum(), alpha=client.options["penalty"])


def skewness(basis: Tensor) -> Tensor:
    """mean((B B' - I)^2)."""
    rows = basis.flatten(1)
    return (rows @ rows.T - torch.eye(len(rows), dtype=rows.dtype, device=rows.device)).square().mean()


def renewed(closing: Closing) -> dict[str, Tensor]:
    """The basis is the mean over all clients, everything else the mean over those of its width."""
    sums: Sequence[Any] = closing.sums
    memory, total = dict(closing.memory), sum(cohort.weight for cohort in sums)
    bases = under(closing.memory, BASIS)
    for cohort in sums:
        prefixed = f"{WIDTH}.{cohort.part.width:g}"
        own = {n: t for n, t in cohort.mean.items() if f"{prefixed}.{n}" in memory}
        memory |= {name: tensor.to(memory[name].dtype) for name, tensor in named(prefixed, own).items()}
    for weight, old in bases.items():
        new = sum(cohort.mean[basis_name(weight)] * (cohort.weight / total) for cohort in sums)
        memory[f"{BASIS}.{weight}"] = new.to(old.dtype)
    return memory


def advance(closing: Closing) -> dict[str, Tensor]:
    """Basis and tensors of every width after the round."""
    return closing.once(renewed)


def close(closing: Closing) -> dict[str, Tensor]:
    """The model of the widest devices, composed."""
    return whole_model(closing.once(renewed), closing.state)


METHOD = Method(
    name="flanc",
    title="FLANC",
    paper="Mei et al. 2022",
    equation="Eq. 1 to 4",
    choose=choose,
    options={
        "bases": Option(0.25, "a share from 0 to 1", is_share, "kernels of a basis, as a share of the outputs"),
        "basis_fraction": Option(0.125, "a share from 0 to 1", is_share, "inputs of a basis, as a share of the inputs"),
        "penalty": Option(10.0, "a number of at least 0", is_number, "weight of the bases' orthogonality"),
    },
    slices=False,
    reads=("memory",),
    shared=lambda _: True,
    local=Local(loss=loss),
    start=start,
    init=init,
    advance=advance,
    close=close,
)
