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
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedwidth.core.aggregation import in_dtype_of
from fedwidth.core.architectures import Held
from fedwidth.core.factored.composed_layer import ComposedLayer, compose, orthogonal, skewness
from fedwidth.core.factored.composition import Composition, CompositionSum, basis_name, coefficient_name
from fedwidth.core.factored.decomposition import hidden_layers
from fedwidth.core.running_mean import accumulable, interpolated
from fedwidth.core.submodel import extract
from fedwidth.errors import OptionError
from fedwidth.methods.definition import (
    Beginning,
    ClientPass,
    Closing,
    Local,
    Memory,
    Method,
    Moment,
    at_least_zero,
    named,
    share,
    under,
)
from fedwidth.methods.shared.width_models import WIDTH
from fedwidth.plan.plan import Plan
from fedwidth.randomness import torch_generator

BASIS = "basis"
"""The server remembers the basis of every composed weight, and the other tensors of every width."""


def widths_of(enrolled: Sequence[float]) -> list[float]:
    """The widths there are sets of tensors for; the widest is the whole model."""
    widths = sorted({float(width) for width in enrolled})
    if widths[-1] != 1:
        raise OptionError(
            f"flanc has no model that is wider than the widest device, which has {widths[-1]:g}: give a device capacity"
            f" 1, or set model.width={widths[-1]:g} and devices.relative_to=model"
        )
    return widths


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
    bases: dict[str, Tensor] = {}
    for number, weight in enumerate(composed(plan)):
        shape = basis_shape(plan, weight, widths, beginning.options)
        generator = torch_generator(beginning.seed, "basis", number)
        bases[weight] = orthogonal(shape, generator).to(beginning.state[weight])
    memory = named(BASIS, bases)
    for place, width in enumerate(widths):
        index = Held(width).index(plan)
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


def start(beginning: Beginning) -> dict[str, Tensor]:
    """The model of the widest devices, composed."""
    return whole_model(init(beginning), beginning.state)


def whole_model(memory: Memory, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The full-width model out of the memory; other names of a tensor follow it."""
    bases, tensors = under(memory, BASIS), under(memory, f"{WIDTH}.1")
    # In double: a GPU may round what it multiplies in single precision (TF32).
    found = {n: compose(b.double(), tensors[coefficient_name(n)].double()) for n, b in bases.items()}
    return {name: found.get(name, tensors.get(name, tensor)).to(tensor) for name, tensor in state.items()}


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> Composition:
    """The model of the client's width, its inner kernels composed."""
    del counts
    width, bases = float(at.capacity), under(at.memory, BASIS)
    tensors = under(at.memory, f"{WIDTH}.{width:g}")
    if not tensors:
        raise OptionError(f"flanc keeps a model for each enrolled width, and has none of {width:g}")
    units = sum(tensors[coefficient_name(weight)].numel() for weight in bases)
    sent = tensors | {basis_name(weight): basis for weight, basis in bases.items()}
    shapes = {weight: tuple(basis.shape) for weight, basis in bases.items()}
    held = Held(width)
    return Composition(held.index(plan), held, max(1, units), sent, shapes)


def loss(client: ClientPass, inputs: Tensor, targets: Tensor) -> Tensor:
    """The plain loss, and how far the bases are from orthogonal ones."""
    plain = client.loss(client.logits(inputs), targets)
    layers = [layer for layer in client.network().modules() if isinstance(layer, ComposedLayer)]
    if not layers:
        return plain
    return plain.add(torch.stack([skewness(layer.basis) for layer in layers]).sum(), alpha=client.options["penalty"])


def renewed(closing: Closing) -> dict[str, Tensor]:
    """The basis is the mean over all clients, everything else the mean over those of its width that hold it."""
    memory = dict(closing.memory)
    sums = [cohort for cohort in closing.sums if isinstance(cohort, CompositionSum)]
    for cohort in sums:
        prefix = f"{WIDTH}.{cohort.part.width:g}"
        for name, old in under(closing.memory, prefix).items():
            first = closing.plan.tied.get(name, name)
            held, mean = cohort.weight[first], cohort.mean[first]
            new = torch.where(held > 0, mean, old) if isinstance(held, Tensor) else mean
            memory[f"{prefix}.{name}"] = in_dtype_of(new, old)
    for weight, old in under(closing.memory, BASIS).items():
        mean, total = accumulable(old), 0.0
        for cohort in sums:
            total += cohort.total_weight
            mean = interpolated(mean, cohort.mean[basis_name(weight)], cohort.total_weight / total)
        memory[f"{BASIS}.{weight}"] = in_dtype_of(mean, old)
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
    equation="weights from a shared basis",
    choose=choose,
    options={
        "bases": share(0.25, "kernels of a basis, as a share of the outputs"),
        "basis_fraction": share(0.125, "inputs of a basis, as a share of the inputs"),
        "penalty": at_least_zero(10.0, "weight of the bases' orthogonality"),
    },
    slices=False,
    reads=("memory",),
    shared=lambda _: True,
    local=Local(loss=loss, steady=True),
    start=start,
    init=init,
    advance=advance,
    close=close,
)
