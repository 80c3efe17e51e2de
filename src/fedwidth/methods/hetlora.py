"""HetLoRA: a client holds the first ranks; the server fills up with 0 and averages A and B apart, where a client weighs
as much as its product is long (Cho et al. 2024).

    A = sum of w_k [A_k; 0],   B = sum of w_k [B_k 0],   w_k = |B_k A_k| / sum of |B_i A_i|

Filling up shrinks ranks that few clients hold. The paper's clients may also give up ranks of their own by themselves;
here capacities say how many each has.
"""

from __future__ import annotations

from torch import Tensor

from fedwidth.adapters.averages import padded
from fedwidth.adapters.products import product_of
from fedwidth.methods.definition import ROUNDING, Closing, Method, Need, per_group
from fedwidth.methods.heterofl import units


def close(closing: Closing) -> dict[str, Tensor]:
    """Adapters padded and weighed by the lengths of products, each adapter by itself; the rest by Eq. 10."""
    new = closing.average()
    for adapter in closing.plan.adapters:
        lengths = [product_of(adapter, total.mean).norm() for total in closing.sums]
        weights = lengths if sum(lengths) else [1.0] * len(lengths)
        new |= padded(adapter, closing.state, closing.sums, weights)
    return new


METHOD = Method(
    name="hetlora",
    title="HetLoRA",
    paper="Cho et al. 2024",
    equation="zeros, weights by norms",
    choose=per_group(units),
    options={"rounding": ROUNDING},
    shared=lambda _: True,
    nested=lambda _: True,
    adapters="clients",
    needs={"adapter.outside": Need("drop", "its clients run the first ranks alone, as the server cut them")},
    close=close,
    collect="updates",
)
