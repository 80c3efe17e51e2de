"""FlexLoRA: the server averages products and decomposes the mean again; a client gets the first ranks of it
(Bai et al. 2024).

    W = sum of p_k B_k A_k,   W = U S V',   B = U S and A = V', the largest singular values first

Exact where the mean has no more ranks than the adapter. Ranks above the smallest client's are trained by some and
averaged over all, so that they fade (rank collapse): `adapters.effective_rank` of the metrics shows it.
"""

from __future__ import annotations

from torch import Tensor

from fedwidth.adapters.averages import average_svd
from fedwidth.methods.definition import ROUNDING, Closing, Method, Need, per_group
from fedwidth.methods.heterofl import units


def close(closing: Closing) -> dict[str, Tensor]:
    """The mean of products over all clients, decomposed."""
    return average_svd(
        closing.state, closing.sums, closing.plan, seed=closing.seed, round=closing.round, over="clients"
    )


METHOD = Method(
    name="flexlora",
    title="FlexLoRA",
    paper="Bai et al. 2024",
    equation="SVD of the mean",
    choose=per_group(units),
    options={"rounding": ROUNDING},
    shared=lambda _: True,
    nested=lambda _: True,
    adapters="clients",
    needs={"adapter.outside": Need("drop", "its clients run the first ranks alone, as the server cut them")},
    close=close,
    collect="updates",
)
