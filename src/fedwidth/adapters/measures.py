"""What is measured of adapters: how far an average is from the mean of products, and how many ranks are in use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedwidth.adapters.products import HOLDERS, is_whole, mean_product, product_of
from fedwidth.core.cohort import CohortSum
from fedwidth.plan.adapters import Adapter
from fedwidth.plan.plan import Plan

State = Mapping[str, Tensor]


def aggregation_error(
    state: State, new: State, sums: Sequence[CohortSum], plan: Plan, over: str = HOLDERS
) -> float | None:
    """|mean of products - product of the new state| / |mean of products|, over all adapters together.

    `state` is what the round began with, `new` what it ended with; what was added to frozen weights counts. None where
    it cannot be said: products of parts of layers, or no product at all.
    """
    missing = length = 0.0
    for adapter in plan.adapters:
        if not all(is_whole(adapter, total) for total in sums):
            return None
        wanted, found = mean_product(adapter, state, sums, over), product_of(adapter, new)
        length += wanted.norm() ** 2
        old, moved = state[adapter.weight], new[adapter.weight]
        if moved is old or torch.equal(moved, old):
            missing += wanted.minus(found).norm() ** 2
            continue
        added = (moved.double() - old.double()) / adapter.scale
        added = (added.T if adapter.transposed else added).reshape(len(found.left), -1)
        missing += float((wanted.dense() - found.dense() - added).square().sum())
    return math.sqrt(missing / length) if length else None


def effective_rank(first: State, now: State, plan: Plan) -> float | None:
    """How many ranks the change since the run began uses, averaged over the adapters: exp of the entropy of its
    singular values, made to sum to 1 (Roy and Vetterli 2007). None while nothing has changed."""
    found = [rank for adapter in plan.adapters if (rank := _rank_of(change(first, now, adapter)))]
    return sum(found) / len(found) if found else None


def change(first: State, now: State, adapter: Adapter) -> Tensor:
    """The singular values of what became of an adapted layer's weight since the run began, its adapter included."""
    product = product_of(adapter, now).minus(product_of(adapter, first))
    old, new = first[adapter.weight], now[adapter.weight]
    if new is old or torch.equal(new, old):
        return product.values() * adapter.scale
    moved = new.double() - old.double()
    shape = tuple(moved.shape)
    dense = moved + adapter.product(product.left, product.right, shape)
    values: Tensor = torch.linalg.svdvals(dense.T if adapter.transposed else dense.flatten(1))
    return values


def _rank_of(values: Tensor) -> float:
    total = float(values.sum())
    if not total:
        return 0.0
    shares = values / total
    shares = shares[shares > 1e-12]
    return float(torch.exp(-(shares * shares.log()).sum()))
