"""One federated round with nothing but the core: trace, select, extract, train, merge.

    python examples/one_round_by_hand.py

The training in the middle is plain PyTorch; put your own loop, devices or network transport there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import fedwidth

CAPACITIES = (1.0, 0.5, 0.25, 0.25)


def train(small: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """What a device does: a few steps of SGD on its own data."""
    optimiser = torch.optim.SGD(small.parameters(), lr=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        functional.cross_entropy(small(inputs), targets).backward()
        optimiser.step()


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    inputs = torch.randn(len(CAPACITIES), 50, 10)
    targets = inputs[..., :3].argmax(-1)

    plan = fedwidth.trace(model, inputs[0])
    plan.check(model, inputs[0])  # the self-test: permuting the units of a group changes nothing
    method = fedwidth.method("fedrolex")
    state = fedwidth.state_of(model)

    updates = []
    for client, capacity in enumerate(CAPACITIES):
        index = method.select(plan, capacity=capacity, round=0, client=client, clients=len(CAPACITIES), seed=0)
        small = fedwidth.narrow(model, plan, index)  # on a device: send extract(state, plan, index) instead
        train(small, inputs[client], targets[client])
        updates.append((fedwidth.state_of(small), index, 1.0))
        print(f"client {client}: capacity {capacity:<4g} {sum(p.numel() for p in small.parameters())} parameters")

    new = fedwidth.merge(state, updates, plan)  # FedRolex Eq. 10
    changed = sum(int((new[name] != state[name]).sum()) for name in state)
    print(f"{changed} of {sum(t.numel() for t in state.values())} weights changed")
    model.load_state_dict(new)


if __name__ == "__main__":
    main()
