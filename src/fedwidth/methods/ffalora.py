"""FFA-LoRA: A stays as it was drawn, and clients train B alone (Sun et al. 2024).

    mean of p_k B_k A  =  (mean of p_k B_k) A       exactly, and half of an adapter is sent

As a local rule it goes with any choice of ranks: `[local] name = "ffalora"`.
"""

from __future__ import annotations

from fedwidth.methods.definition import Local, Method
from fedwidth.methods.fedavg import choose
from fedwidth.plan.plan import Plan


def rests(plan: Plan, round: int) -> frozenset[str]:
    """Every A, in every round."""
    del round
    return frozenset(adapter.down for adapter in plan.adapters)


METHOD = Method(
    name="ffalora",
    title="FFA-LoRA",
    paper="Sun et al. 2024",
    equation="A frozen",
    choose=choose,
    shared=lambda _: True,
    nested=lambda _: True,
    adapters="holders",
    local=Local(rests=rests),
)
