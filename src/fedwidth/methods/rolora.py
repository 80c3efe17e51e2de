"""RoLoRA: clients train B in one round and A in the next (Chen et al. 2024).

    round 0, 2, …   A is the same for all:  mean of p_k B_k A  =  (mean of p_k B_k) A
    round 1, 3, …   B is the same for all:  mean of p_k B A_k  =  B (mean of p_k A_k)

Exact in every round, and half of an adapter is sent up. As a local rule it goes with any choice of ranks.
"""

from __future__ import annotations

from fedwidth.methods.definition import Local, Method
from fedwidth.methods.fedavg import choose
from fedwidth.plan.plan import Plan


def rests(plan: Plan, round: int) -> frozenset[str]:
    """Every A in even rounds, every B in odd ones: B begins at 0, and while it is there A has no gradient."""
    return frozenset(adapter.up if round % 2 else adapter.down for adapter in plan.adapters)


METHOD = Method(
    name="rolora",
    title="RoLoRA",
    paper="Chen et al. 2024",
    equation="A and B in turn",
    choose=choose,
    shared=lambda _: True,
    nested=lambda _: True,
    adapters="holders",
    local=Local(rests=rests),
)
