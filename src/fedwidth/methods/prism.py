"""PriSM: a device trains some of the principal components of every layer (Niu et al. 2022).

Every inner layer is W = sum over i of u_i v_i by its singular value decomposition, a convolution as a k x k one to R
components and a 1 x 1 one. In every round a device of capacity c draws ceil(c R) of them without replacement, with odds

    p_i = sigma_i^kappa / sum of sigma^kappa

and minimises loss + decay / 2 |U V|^2. The server replaces u_i and v_i by the mean over the clients that held them;
components nobody held stay; then W = U V. The mean of factors is not the mean of products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedwidth.core.factored.decomposition import CHANNELS, decompose, from_matrices, hidden_layers, matrix_shape
from fedwidth.core.factored.factors import Factors, FactorSum, factor_names
from fedwidth.core.index import Index
from fedwidth.methods.definition import Closing, Local, Method, Moment, at_least_zero, choice, count
from fedwidth.methods.fedhm import loss
from fedwidth.plan.plan import Plan
from fedwidth.randomness import numpy_generator


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> Index | Factors:
    """Some components of every inner layer."""
    del counts
    assert at.state is not None
    components = {}
    for number, weight in enumerate(hidden_layers(plan)):
        groups, rows, columns = matrix_shape(plan, weight, CHANNELS)
        total = min(rows, columns)
        if at.options["size"] == "components":
            held = math.ceil(at.capacity * total)
        else:
            held = max(1, math.floor(at.capacity**2 * rows * columns / (rows + columns)))
        values = decompose(at.state[weight], groups, CHANNELS)[2].double().sum(0).cpu().numpy()
        generator = numpy_generator(at.seed, "select", at.round, at.client, number)
        components[weight] = draw(values, min(held, total), generator, at)
    return Factors(plan, CHANNELS, components, keeps_factors=True) if components else Index.whole(plan)


def draw(values: np.ndarray, held: int, generator: np.random.Generator, at: Moment) -> tuple[int, ...]:
    """Numbers of the components a client holds, drawn one after the other with odds that follow singular values.

    The largest of log p + Gumbel noise are distributed like draws without replacement.
    """
    if at.round < at.options["warmup"] or at.options["draw"] == "top" or held == len(values):
        return tuple(range(held))
    logs = log_odds(values, at.options["draw"], at.options["kappa"])
    noisy = logs + generator.gumbel(size=len(values))
    return tuple(sorted(np.argsort(-noisy, kind="stable")[:held].tolist()))


def log_odds(values: np.ndarray, kind: str, kappa: float) -> np.ndarray:
    """Logarithms of the odds with which components are drawn, up to a constant."""
    if kind == "uniform":
        return np.zeros(len(values))
    if kind == "softmax":
        return values
    found: np.ndarray = kappa * np.log(np.maximum(values, np.finfo(float).tiny))
    return found


def close(closing: Closing) -> dict[str, Tensor]:
    """Products of the mean factors; all other tensors are averaged as they are."""
    new = closing.average()
    sums = [cohort for cohort in closing.sums if isinstance(cohort, FactorSum)]
    for weight in dict.fromkeys(name for cohort in sums for name in cohort.part.components):
        new[weight] = from_matrices(
            mean_product(closing.state[weight], weight, sums, closing.plan), closing.plan.shapes[weight], CHANNELS
        ).to(new[weight].dtype)
    return new


def mean_product(old: Tensor, weight: str, sums: Sequence[FactorSum], plan: Plan) -> Tensor:
    """U V of one weight: every component is the mean over the clients that held it, and stays where nobody did."""
    up, down, _ = (tensor.double() for tensor in decompose(old, plan.layers[weight], CHANNELS))
    ups, downs, total = torch.zeros_like(up), torch.zeros_like(down), up.new_zeros(up.shape[2])
    for cohort in sums:
        numbers = torch.tensor(cohort.part.components[weight], device=up.device)
        one, other = (cohort.factors[name].double() for name in factor_names(weight))
        ups[:, :, numbers] += one * cohort.total_weight
        downs[:, numbers] += other * cohort.total_weight
        total[numbers] += cohort.total_weight
    held = total > 0
    up = torch.where(held, ups / total.clamp(min=1e-300), up)
    down = torch.where(held[:, None], downs / total.clamp(min=1e-300)[:, None], down)
    return up @ down


METHOD = Method(
    name="prism",
    title="PriSM",
    paper="Niu et al. 2022",
    equation="Algorithm 1",
    choose=choose,
    options={
        "size": choice("components", "parameters", help="capacity of the components, or capacity^2 of the weights"),
        "draw": choice("power", "softmax", "uniform", "top", help="odds of a component by its singular value"),
        "kappa": at_least_zero(2.5, "the power of singular values"),
        "warmup": count(0, "rounds with the top components first"),
        "decay": at_least_zero(2e-4, "weight decay of products of factors"),
    },
    slices=False,
    reads=("state",),
    local=Local(loss=loss, steady=True),
    close=close,
)
