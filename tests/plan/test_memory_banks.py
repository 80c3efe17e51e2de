"""Buffers into which a forward pass writes samples: their slots are no width, whatever the example's batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedwidth.core.index import Index
from fedwidth.core.narrow import narrow
from fedwidth.plan.trace import trace

SLOTS = 40


class Bank(nn.Module):
    """Features of earlier batches in a queue, by rows or, as MoCo has it, by columns."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by, self.up, self.out = by, nn.Linear(6, 16), nn.Linear(16, 3)
        self.register_buffer("queue", torch.randn(SLOTS, 16) if by == "rows" else torch.randn(16, SLOTS))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a mean over the queue, weighted by likeness."""
        h, at = self.up(x), int(self.at)
        if self.training:
            if self.by == "rows":
                self.queue[at : at + len(x)] = h.detach()
            else:
                self.queue[:, at : at + len(x)] = h.detach().T
            self.at[0] = (at + len(x)) % (SLOTS - 10)
        bank = self.queue.T if self.by == "rows" else self.queue
        return self.out((h @ bank).softmax(1) @ bank.T)


class Joined(nn.Module):
    """A buffer whose two halves are two widths, written one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(6, 12)
        self.out = nn.Linear(20, 3)
        self.register_buffer("means", torch.zeros(20))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of both less their means."""
        one, two = self.one(x), self.two(x)
        if self.training:
            self.means[: one.shape[1]] = one.detach().mean(0)
            self.means[one.shape[1] :] = two.detach().mean(0)
        return self.out(torch.cat([one, two], 1) - self.means)


def half(model: nn.Module, plan: Any) -> nn.Module:
    units = {name: range(group.size // 2) for name, group in plan.groups.items()}
    return narrow(model, plan, Index.of_units(plan, units))


@pytest.mark.parametrize("batch", [2, 10])
@pytest.mark.parametrize("by", ["rows", "columns"])
def test_a_queue_keeps_its_slots(by: str, batch: int) -> None:
    model, x = Bank(by), torch.randn(batch, 6)
    plan = trace(model, x)
    assert [group.size for group in plan.groups.values()] == [16]
    assert ("queue", int(by == "columns")) in [(name, dim) for name, dim, _ in plan.frozen()]
    plan.check(model, x)
    made = half(model, plan).train()
    assert sorted(made.queue.shape) == [8, SLOTS]
    for _ in range(6):
        made(torch.randn(10, 6)).sum().backward()


def test_widths_that_are_written_by_slices_stay_widths() -> None:
    model, x = Joined(), torch.randn(4, 6)
    plan = trace(model, x)
    assert sorted(group.size for group in plan.groups.values()) == [8, 12]
    plan.check(model, x)
    assert half(model, plan).means.shape == (10,)
