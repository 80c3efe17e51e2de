"""Sums of edge servers: the same average as without them."""

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.core.cohort import sum_cohorts
from fedwidth.core.levels import merge_edges, pack_sums


def test_two_levels_average_as_one_does():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    plan = fedwidth.trace(model, torch.zeros(2, 4, dtype=torch.double))
    state = fedwidth.state_of(model)
    tasks = fedwidth.method("fedrolex").assign(plan, [(n, (1.0, 0.5, 0.25)[n % 3]) for n in range(12)], round=5)
    updates = [
        fedwidth.Update(
            {
                name: tensor + torch.randn_like(tensor)
                for name, tensor in fedwidth.extract(state, plan, task.index).items()
            },
            task.index,
            1.0 + task.client,
        )
        for task in tasks
    ]
    flat = fedwidth.merge(state, updates, plan)
    edges = [pack_sums(sum_cohorts([u for n, u in enumerate(updates) if n % 4 == edge], plan)) for edge in range(4)]
    sums = merge_edges(edges, {task.index.key: task.index for task in tasks})
    assert sum(found.clients for found in sums) == 12
    found = fedwidth.finalise(state, sums, plan)
    assert all(torch.allclose(found[name], flat[name], rtol=0, atol=1e-14) for name in flat)


def test_sums_of_another_index_are_refused():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    plan = fedwidth.trace(model, torch.zeros(2, 4))
    index = fedwidth.method("heterofl").select(plan, capacity=0.5)
    sums = pack_sums(sum_cohorts([(fedwidth.extract(fedwidth.state_of(model), plan, index), index, 1.0)], plan))
    with pytest.raises(fedwidth.FedwidthError, match="none of this round's"):
        merge_edges([sums], {})
