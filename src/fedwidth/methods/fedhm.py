"""FedHM: a weak device trains the layers of the model as products of two factors of low rank (Yao et al. 2021).

A device of capacity c has the factor f = 1/c. At f = 1 it trains the model itself. Otherwise every inner layer is
decomposed, W = U V, with rank r = max(1, round(outputs / f)); a convolution becomes a 1 x k and a k x 1 one. The
first residual block stays whole. Clients minimise

    loss + decay / 2 |U V|^2        the norm of products: weight decay of the settings leaves factors alone

and the server multiplies what comes back and averages products, not factors:

    W = sum over i of w_i U_i V_i,   w_i alike, or by the softmax of -f_i / temperature

If nobody in the round held the whole model, the server's own joins as one more client with f = 1: otherwise all that
is not of low rank would be gone.

The published code also lets weight decay of the settings move factors, and adds up the classifier's rows of each class
over the clients that have it without dividing by their weight, so that they shrink: `published = true`.

FedBRB and the thesis cite another system of this name (Park and Ko 2023) but describe this one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from fedwidth.core.aggregation import finalise
from fedwidth.core.cohort import CohortSum
from fedwidth.core.factored.decomposition import SEPARABLE, hidden_layers, matrix_shape
from fedwidth.core.factored.factored_layer import product_norm
from fedwidth.core.factored.factors import Factors
from fedwidth.core.index import Index
from fedwidth.core.running_mean import accumulable
from fedwidth.methods.definition import (
    ClientPass,
    Closing,
    Local,
    Method,
    Moment,
    Option,
    above_zero,
    at_least_zero,
    choice,
    switch,
)
from fedwidth.plan.axis import groups_of
from fedwidth.plan.plan import Plan

BLOCK = "block"
"""Keeps the layers of the first residual block whole, as published."""


def choose(plan: Plan, counts: Mapping[str, int], at: Moment) -> Index | Factors:
    """The factors of every inner layer that become smaller by it; the whole model where none does."""
    del counts
    components = {}
    kept = at.options["keep_first"]
    for weight in hidden_layers(plan)[first_block(plan) if kept == BLOCK else int(kept) :]:
        groups, rows, columns = matrix_shape(plan, weight, SEPARABLE)
        outputs = plan.shapes[weight][0] // groups
        if at.options["rank"] == "factor":
            rank = max(1, round(outputs * at.capacity))
        else:
            rank = max(1, math.floor(at.capacity**2 * rows * columns / (rows + columns)))
        if at.capacity < 1 and rank * (rows + columns) < rows * columns:
            components[weight] = tuple(range(rank))
    decays = bool(at.options["published"])
    return Factors(plan, SEPARABLE, components, decays=decays) if components else Index.whole(plan)


def first_block(plan: Plan) -> int:
    """How many inner layers the first residual block has: up to the one that adds to what the first layer gave.

    >>> import torch, fedwidth, fedwidth.models
    >>> first_block(fedwidth.trace(fedwidth.models.build("preresnet18"), torch.zeros(2, 3, 32, 32)))
    2
    >>> plain = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    >>> first_block(fedwidth.trace(plain, torch.zeros(2, 4)))
    0
    """
    inner = hidden_layers(plan)
    stream = {group for name in plan.layers if name not in inner for group in groups_of(plan.axes[name][0])}
    ends = (
        number
        for number, name in enumerate(inner, 1)
        if plan.layers[name] == 1 and stream.intersection(groups_of(plan.axes[name][0]))
    )
    return next(ends, 0)


def loss(client: ClientPass, inputs: Tensor, targets: Tensor) -> Tensor:
    """The plain loss and the norm of products."""
    plain = client.loss(client.logits(inputs), targets)
    return plain.add(product_norm(client.network()), alpha=client.options["decay"] / 2)


def close(closing: Closing) -> dict[str, Tensor]:
    """The mean of products, each client weighed by its factor too where that is asked for."""
    temperature = closing.options["temperature"]
    by_rank = closing.options["weights"] == "rank"
    factors = {task.cohort: 1 / task.capacity for task in closing.tasks}

    def scale(factor: float) -> float:
        return math.exp((1 - factor) / temperature) if by_rank else 1.0  # a factor common to all cancels

    def scaled(cohort: CohortSum, factor: float) -> CohortSum:
        weights = {name: weight * scale(factor) for name, weight in cohort.weight.items()}
        return CohortSum.of(cohort.index, cohort.mean, weights, cohort.clients)

    pairs = zip(closing.sums, factors.values(), strict=True)
    sums = [scaled(cohort, factor) for cohort, factor in pairs if scale(factor)]  # some weigh less than any number
    if all(factor > 1 for factor in factors.values()):
        clients = sum(cohort.clients for cohort in closing.sums)
        own = sum(cohort.total_weight for cohort in closing.sums) / clients  # what a client weighs on average
        state = {name: accumulable(tensor) for name, tensor in closing.state.items() if name not in closing.plan.tied}
        weights = dict.fromkeys(state, own * scale(1.0))
        sums.append(CohortSum.of(Index.whole(closing.plan), state, weights, 1))
    new = finalise(closing.state, sums, closing.plan)
    return new | shrunken(new, sums, closing.plan) if closing.options["published"] else new


def shrunken(new: Mapping[str, Tensor], sums: Sequence[CohortSum], plan: Plan) -> dict[str, Tensor]:
    """The classifier with each row divided by the weight of all clients instead of those that have its class."""
    everyone = sum(cohort.total_weight for cohort in sums)
    found = {}
    for name, _ in plan.label_axes:
        held = sum(cohort.weight[plan.tied.get(name, name)] for cohort in sums)
        found[name] = (new[name] * (held / everyone)).to(new[name].dtype)
    return found


METHOD = Method(
    name="fedhm",
    title="FedHM",
    paper="Yao et al. 2021",
    equation="low-rank factors, averaged as products",
    choose=choose,
    options={
        "rank": choice("factor", "parameters", help="rank = outputs * capacity, or capacity^2 of a layer's weights"),
        "keep_first": Option(
            BLOCK,
            f"'{BLOCK}' or a whole number of at least 0",
            lambda value: value == BLOCK or (type(value) is int and value >= 0),
            "inner layers that stay whole",
        ),
        "decay": at_least_zero(1e-4, "weight decay of products of factors"),
        "weights": choice("equal", "rank", help="what clients weigh: alike, or by the softmax of -1/capacity"),
        "temperature": above_zero(1.0, "of that softmax"),
        "published": switch("as the published code: factors decay too, and rows of classes that clients lack shrink"),
    },
    slices=False,
    additive=False,
    shared=lambda _: True,
    local=Local(loss=loss, steady=True),
    close=close,
)
