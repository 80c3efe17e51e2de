"""What devices really have: against the costs measured on narrow models, and against numbers by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import zoo
from fedwidth.core.cost import cost
from fedwidth.plan.shares import share, why_so_large
from fedwidth.plan.table import share_lines
from fedwidth.plan.trace import trace

LEAST, MOST = {"tied-encoder": 0.8}, {"lstm": 4.0, "gru": 4.0, "bilstm": 4.0}
"""Attention runs as one operator, which keeps less, but not on the meta device, where costs are measured; recurrent
layers run in parts while they are traced, which keep more."""


def test_shares_by_hand() -> None:
    # 20 -> 8 -> 6: at a half 20 * 4 + 4 + 4 * 6 + 6 = 114 of 20 * 8 + 8 + 8 * 6 + 6 = 222 parameters,
    # 20 * 4 + 4 * 6 = 104 of 208 multiply-adds
    model = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 6))
    plan = trace(model, torch.randn(3, 20))
    found = share(plan, Fraction(1, 2), batch=10, moments=2)
    assert found.parameters == 114 / 222
    assert found.macs == 0.5
    assert plan.work.macs({}) == 208
    # Weights, gradients, two moments, and for each of ten samples what the backward pass needs: the input (20), what
    # ReLU gave (8), which is also what the second layer read.
    assert plan.work.memory({}, batch=10, moments=2) == 4 * (4 * 222 + 10 * (20 + 8))
    assert plan.work.memory({"0": 4}, batch=10, moments=2) == 4 * (4 * 114 + 10 * (20 + 4))
    assert found.memory == pytest.approx((4 * 114 + 240) / (4 * 222 + 280))
    assert not found.is_far


@pytest.mark.parametrize("name", zoo.ZOO)
def test_work_is_what_narrow_models_do(name: str) -> None:
    model, plan, inputs = zoo.traced(name)
    for measured in cost(model, plan, inputs, [1, Fraction(1, 2)]):
        counts = plan.counts(measured.capacity)
        assert plan.work.macs(counts) == pytest.approx(measured.macs, abs=1)
        ratio = plan.work.memory(counts, batch=8, moments=1) / measured.memory(batch=8, moments=1)
        assert LEAST.get(name, 0.99) < ratio < MOST.get(name, 1.01), (measured.capacity, ratio)


class Frozen(nn.Module):
    """Most of it cannot be sliced, because an operator has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide, self.last = nn.Linear(6, 40), nn.Linear(40, 40), nn.Linear(40, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.linalg.pinv(self.first(x)).mT
        x = torch.linalg.pinv(self.wide(x)).mT
        return self.out(torch.relu(self.last(x)))


def test_a_mostly_frozen_model_says_so_and_why() -> None:
    plan = trace(Frozen(), torch.randn(2, 6))
    found = share(plan, Fraction(1, 16))
    assert found.is_far
    assert found.parameters > 0.8
    lines = share_lines(plan, [share(plan, 1), found], batch=32)
    (warning,) = (line for line in lines if line.startswith("far from what was asked"))
    assert warning == f"far from what was asked: at 1/16 a device holds {found.parameters:.0%} of the parameters"
    assert lines[lines.index(warning) + 1].startswith("  first, wide, last")
    assert "has no rule" in lines[lines.index(warning) + 1]
    assert warning in str(plan)


def test_a_group_that_cannot_become_small_enough_is_named() -> None:
    # Eight groups of four channels: at 0.1 one of each four stays, 8 of 32.
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.GroupNorm(8, 32), nn.Flatten(), nn.LazyLinear(5))
    pictures = torch.randn(2, 3, 8, 8)
    model(pictures)
    plan = trace(model, pictures)
    assert plan.counts(0.1) == {"0": 1}
    assert any("group '0' keeps 1 of 4 units" in line for line in why_so_large(plan, share(plan, 0.1)))
    assert any(
        line.startswith("far from what was asked: at 0.1") for line in share_lines(plan, [share(plan, 0.1)], batch=32)
    )
    assert not any(line.startswith("far") for line in share_lines(plan, [share(plan, 0.5)], batch=32))


def test_a_plan_prints_its_shares() -> None:
    model, plan, _ = zoo.traced("vit")
    text = str(plan)
    assert "what a device really has" in text
    assert "capacity  parameters  multiply-adds  memory to train (batches of 32)" in text
    found = share(plan, Fraction(1, 2))
    expected = sum(t.numel() for t in zoo.build(zoo.ZOO["vit"].half).parameters())
    assert found.parameters == expected / sum(p.numel() for p in model.parameters())
    assert f"{found.parameters:.1%}" in text
