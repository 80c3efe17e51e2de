"""Rules that average adapters exactly where several clients hold one unit.

    units       Eq. 10: A and B apart, unit by unit. Exact where a unit has one holder, else off by a covariance.
    svd         the mean of products, decomposed again: the nearest adapter of the same rank (FlexLoRA)
    residual    as units, and what is missing is added to the frozen weight (FedEx-LoRA)
    stack       all of the mean of products is added to the frozen weight, and adapters begin anew (FLoRA)

Two more need no rule on the server, because clients train one factor only: A frozen (`ffalora`) and A and B in turn
(`rolora`). Every rule averages whatever is no adapter as Eq. 10 says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedwidth.adapters.layer import draw
from fedwidth.adapters.products import HOLDERS, Product, is_whole, mean_product, product_of
from fedwidth.core.aggregation import finalise
from fedwidth.core.cohort import CohortSum
from fedwidth.errors import OptionError
from fedwidth.plan.adapters import Adapter
from fedwidth.plan.plan import Plan
from fedwidth.randomness import torch_generator

State = Mapping[str, Tensor]
UNITS, SVD, RESIDUAL, STACK = "units", "svd", "residual", "stack"
NOISE = 100
"""Singular values below so many roundings of the largest are none."""


class Average(Protocol):
    """A way to make the new state of the old one and what clients trained, given one sum for each client."""

    def __call__(
        self, state: State, sums: Sequence[CohortSum], plan: Plan, *, seed: int, round: int, over: str = HOLDERS
    ) -> dict[str, Tensor]:
        """The new state."""


def average_svd(
    state: State, sums: Sequence[CohortSum], plan: Plan, *, seed: int, round: int, over: str = HOLDERS
) -> dict[str, Tensor]:
    """The mean of products, decomposed into an adapter of the same rank: B = U S, A = V'.

    Units beyond the rank of the mean keep their row of A and get 0 in B: they add nothing, and can still learn.
    """
    del seed, round
    new = finalise(state, sums, plan)
    for adapter in _adapters(sums, plan, SVD):
        rank = plan.shapes[adapter.down][0]
        best = mean_product(adapter, state, sums, over).best(rank, noise=NOISE * torch.finfo(new[adapter.up].dtype).eps)
        found = len(best.right)
        left = best.left.new_zeros(len(best.left), rank)
        right = product_of(adapter, state).right.clone()
        left[:, :found], right[:found] = best.left, best.right
        new |= _written(adapter, Product(left, right), state)
    return new


def average_residual(
    state: State, sums: Sequence[CohortSum], plan: Plan, *, seed: int, round: int, over: str = HOLDERS
) -> dict[str, Tensor]:
    """A and B averaged apart; what their product lacks of the mean of products goes into the frozen weight."""
    del seed, round
    new = finalise(state, sums, plan)
    for adapter in _adapters(sums, plan, RESIDUAL):
        missing = mean_product(adapter, state, sums, over).minus(product_of(adapter, new))
        new[adapter.weight] = added(adapter, state, missing)
    return new


def average_stack(
    state: State, sums: Sequence[CohortSum], plan: Plan, *, seed: int, round: int, over: str = HOLDERS
) -> dict[str, Tensor]:
    """The mean of products goes into the frozen weight, and adapters begin anew: A drawn, B = 0."""
    new = finalise(state, sums, plan)
    for number, adapter in enumerate(_adapters(sums, plan, STACK)):
        new[adapter.weight] = added(adapter, state, mean_product(adapter, state, sums, over))
        down = state[adapter.down]
        new[adapter.down] = torch.empty_like(down)
        draw(new[adapter.down], torch_generator(seed, "adapter anew", round, number))
        new[adapter.up] = torch.zeros_like(state[adapter.up])
    return new


AVERAGES: Mapping[str, Average] = {SVD: average_svd, RESIDUAL: average_residual, STACK: average_stack}
"""The rules by name, but for plain averaging."""
MOVE_FROZEN = (RESIDUAL, STACK)
"""The rules that add to frozen weights."""


def padded(adapter: Adapter, state: State, sums: Sequence[CohortSum], weights: Sequence[float]) -> dict[str, Tensor]:
    """The mean of A and of B over all clients, those that lack a unit counting as 0 (HetLoRA)."""
    old, share = product_of(adapter, state), 1 / sum(weights)
    left, right = torch.zeros_like(old.left), torch.zeros_like(old.right)
    for total, weight in zip(sums, weights, strict=True):
        mine, places = product_of(adapter, total.mean), total.index.on(adapter.down, left.device)[0]
        left[:, places] += weight * share * mine.left
        right[places] += weight * share * mine.right
    return _written(adapter, Product(left, right), state)


def added(adapter: Adapter, state: State, product: Product) -> Tensor:
    """The frozen weight with a product added to it, scaled as the adapter is."""
    weight = state[adapter.weight].detach()
    return (weight.double() + adapter.product(product.left, product.right, tuple(weight.shape))).to(weight.dtype)


def _written(adapter: Adapter, product: Product, state: State) -> dict[str, Tensor]:
    """The tensors of an adapter whose product this is."""
    up, down = state[adapter.up], state[adapter.down]
    return {adapter.up: product.left.reshape(up.shape).to(up), adapter.down: product.right.reshape(down.shape).to(down)}


def _adapters(sums: Sequence[CohortSum], plan: Plan, rule: str) -> tuple[Adapter, ...]:
    """The adapters of a plan, whose products can be added up."""
    for adapter in plan.adapters:
        if not all(is_whole(adapter, total) for total in sums):
            raise OptionError(
                f"adapter.average = '{rule}' adds products of whole layers, but clients hold only some inputs or"
                f" outputs of '{adapter.module}': keep widths whole, or average by units"
            )
    return plan.adapters
