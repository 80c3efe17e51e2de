"""Means of products: what averaging adapters should give, as two factors that are never multiplied out unless asked.

Clients train B_k A_k, unit by unit. The mean of products is a product again, of stacked factors:

    sum over k, j of w_kj b_kj a_kj  =  [B_k diag(w_k)] [A_k]           k clients, j the units that k holds

The product of means, with B the mean of B_k and A the mean of A_k, is something else wherever a unit has two holders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedwidth.core.cohort import CohortSum
from fedwidth.core.running_mean import Weight
from fedwidth.plan.adapters import Adapter

HOLDERS, CLIENTS = "holders", "clients"
"""Over whom a unit's products are averaged: the clients that hold it (FedRolex Eq. 10 on ranks; units without a holder
stay as they are), or all of a round, those that lack it counting as 0 (FlexLoRA, FLoRA)."""


@dataclass(frozen=True)
class Product:
    """A matrix as the product of two factors, [outputs, rank] and [rank, inputs], in double precision."""

    left: Tensor
    right: Tensor

    def dense(self) -> Tensor:
        """The matrix itself."""
        return self.left @ self.right

    def minus(self, other: Product) -> Product:
        """The difference of two, again as factors."""
        return Product(torch.cat([self.left, -other.left], 1), torch.cat([self.right, other.right]))

    def core(self) -> tuple[Tensor, Tensor, Tensor]:
        """(Q, C, P) with orthonormal columns in Q and P, and left right = Q C P': C is small where the rank is."""
        q, upper = torch.linalg.qr(self.left)
        p, other = torch.linalg.qr(self.right.T)
        return q, upper @ other.T, p

    def norm(self) -> float:
        """The Frobenius norm."""
        return float(torch.linalg.matrix_norm(self.core()[1]))

    def values(self) -> Tensor:
        """The singular values, in falling order."""
        found: Tensor = torch.linalg.svdvals(self.core()[1])
        return found

    def best(self, rank: int, noise: float = 0.0) -> Product:
        """The nearest product of this rank or less: U S and V' of the singular value decomposition.

        Values up to `noise` times the largest are left out: which vectors belong to them is chance. Of the two signs of
        a pair of vectors, the largest entry of the row is positive.
        """
        q, core, p = self.core()
        u, values, v = torch.linalg.svd(core, full_matrices=False)
        kept = int((values > noise * values[:1]).sum())
        left, right = (q @ u * values)[:, : min(rank, kept)], (v @ p.T)[: min(rank, kept)]
        signs = torch.sign(right.gather(1, right.abs().argmax(1, keepdim=True)))
        return Product(left * signs.T, right * signs)


def product_of(adapter: Adapter, tensors: Mapping[str, Tensor]) -> Product:
    """An adapter of a state, without its scale."""
    return Product(tensors[adapter.up].detach().double().flatten(1), tensors[adapter.down].detach().double().flatten(1))


def is_whole(adapter: Adapter, total: CohortSum) -> bool:
    """Whether a client held the adapter's full inputs and outputs: then products of two clients can be added."""
    index = total.index
    return index.sliced(adapter.up) in ((), (1,)) and index.sliced(adapter.down) in ((), (0,))


def mean_product(
    adapter: Adapter, state: Mapping[str, Tensor], sums: Sequence[CohortSum], over: str = HOLDERS
) -> Product:
    """The weighted mean of clients' products, without the scale; each sum is one client's.

    Where rows of B have weights of their own (classes that a client has samples of), so have those of the products.
    """
    old = product_of(adapter, state)
    here = [total for total in sums if adapter.up in total.mean]
    weights = {id(total): _rows(total.weight[adapter.up], old.left) for total in here}
    units = {id(total): total.index.on(adapter.down, old.left.device)[0] for total in here}
    totals = torch.zeros_like(old.left)
    for total in here:
        places = units[id(total)] if over == HOLDERS else slice(None)
        totals[:, places] += weights[id(total)]
    lefts, rights = [], []
    for total in here:
        mine, places = product_of(adapter, total.mean), units[id(total)]
        share = weights[id(total)] / totals[:, places].clamp(min=1e-300)
        lefts.append(mine.left * share)
        rights.append(mine.right)
    unheld = (totals == 0).all(0)
    if over == HOLDERS and bool(unheld.any()):
        lefts.append(old.left[:, unheld])
        rights.append(old.right[unheld])
    rows = (totals == 0) & ~unheld  # a class that none of the holders has: its row of B stays, beside the mean of A
    if bool(rows.any()):
        lefts.append(torch.where(rows, old.left, 0.0))
        rights.append(_mean_of_downs(adapter, old, here, units))
    return Product(torch.cat(lefts, 1), torch.cat(rights)) if lefts else old


def _rows(weight: Weight, like: Tensor) -> Tensor:
    """What each output of a client weighs, [outputs, 1] or [1, 1]."""
    if isinstance(weight, Tensor):
        return weight.to(like).flatten(1) if weight.dim() > 1 else weight.to(like)[:, None]
    return like.new_full((1, 1), weight)


def _mean_of_downs(adapter: Adapter, old: Product, sums: Sequence[CohortSum], units: Mapping[int, Tensor]) -> Tensor:
    """A averaged unit by unit over its holders."""
    mean, seen = old.right.clone(), old.right.new_zeros(len(old.right))
    for total in sums:
        weight, places = total.weight[adapter.down], units[id(total)]
        assert isinstance(weight, float)
        seen[places] += weight
        share = (weight / seen[places])[:, None]
        mean[places] += (product_of(adapter, total.mean).right - mean[places]) * share
    return mean
