"""Elements that few clients hold move less, by one exponent for all methods.

    theta[k] += sum over m in M_k of p_m (theta_m[k] - theta[k])  /  (P_k^kappa  P^(1 - kappa))

where M_k are the clients that hold element k, P_k their weight and P that of all clients of the round. With kappa = 1
it is the average over holders (FedRolex Eq. 10); with 0 all participants are in the denominator, as if those who do not
hold an element had sent it back unchanged (CoCoFL, FSLoRA). Where all clients hold everything it is the same for every
exponent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedwidth.core.aggregation import weight_shape
from fedwidth.core.cohort import CohortSum
from fedwidth.core.submodel import State, put, take
from fedwidth.plan.plan import Plan


def damp(
    state: State, average: Mapping[str, Tensor], sums: Sequence[CohortSum], plan: Plan, exponent: float
) -> dict[str, Tensor]:
    """The new state where the average over holders is `average`; buffers take the average as it is."""
    if exponent == 1.0:
        return dict(average)
    everyone = sum(cohort.total_weight for cohort in sums)
    result = dict(average)
    for name in (name for name in average if name in plan.parameters and name not in plan.tied):
        step = (held(name, state[name], sums, plan) / everyone) ** (1.0 - exponent)
        result[name] = torch.lerp(state[name], average[name], step.to(state[name].dtype))
    return result | {name: result[first] for name, first in plan.tied.items() if name in result and first in result}


def held(name: str, tensor: Tensor, sums: Sequence[CohortSum], plan: Plan) -> Tensor:
    """The weight of the clients that hold each element of a tensor; one entry along axes where it cannot differ."""
    total = torch.zeros(weight_shape(plan, name), dtype=torch.float64, device=tensor.device)
    for cohort in (cohort for cohort in sums if name in cohort.mean):
        weight = cohort.weight[name]
        if isinstance(weight, Tensor):
            weight = weight[tuple(slice(n) if n == 1 else slice(None) for n in total.shape)]
            weight = weight.expand([n if total.shape[dim] > 1 else 1 for dim, n in enumerate(cohort.mean[name].shape)])
        put(total, take(total, cohort.index, name) + weight, cohort.index, name)
    return total
