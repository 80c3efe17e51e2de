"""FLoRA: the server stacks what clients trained, which is the mean of products exactly, and adds it to the frozen
weight; every round begins with new adapters (Wang et al. 2024).

    [p_1 B_1 … p_n B_n] [A_1; …; A_n]  =  sum of p_k B_k A_k

Clients may have any ranks. What goes down grows with their sum, because every client is sent the stack of all.
"""

from __future__ import annotations

from torch import Tensor

from fedwidth.adapters.averages import average_stack
from fedwidth.methods.definition import ROUNDING, Closing, Method, Need, per_group
from fedwidth.methods.heterofl import units


def close(closing: Closing) -> dict[str, Tensor]:
    """The mean of products over all clients goes into the frozen weight."""
    return average_stack(
        closing.state, closing.sums, closing.plan, seed=closing.seed, round=closing.round, over="clients"
    )


METHOD = Method(
    name="flora",
    title="FLoRA",
    paper="Wang et al. 2024",
    equation="stacked factors",
    choose=per_group(units),
    options={"rounding": ROUNDING},
    shared=lambda _: True,
    nested=lambda _: True,
    adapters="clients",
    moves_frozen=True,
    needs={"adapter.outside": Need("drop", "adapters begin anew, so ranks that a client lacks add nothing")},
    close=close,
    collect="updates",
)
