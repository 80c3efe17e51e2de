"""Code that only training runs: it is traced, checked, and works in a narrow model."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedwidth.core.index import Index
from fedwidth.core.narrow import narrow
from fedwidth.errors import PlanError
from fedwidth.plan.plan import Plan
from fedwidth.plan.trace import trace


class Auxiliary(nn.Module):
    """Inception's way: in training, a second classifier reads an early layer."""

    def __init__(self, first: int = 8, second: int = 12, inner: int = 6) -> None:
        super().__init__()
        self.stem, self.body = nn.Linear(5, first), nn.Linear(first, second)
        self.auxiliary = nn.Sequential(nn.Linear(first, inner), nn.ReLU(), nn.Linear(inner, 3))
        self.head = nn.Linear(second, 3)

    def forward(self, x: Tensor) -> Any:
        x = torch.relu(self.stem(x))
        logits = self.head(torch.relu(self.body(x)))
        return (logits, self.auxiliary(x)) if self.training else logits


class Drawn(nn.Module):
    """In training, a layer of its own is used now and then."""

    def __init__(self, draw: Callable[[], bool]) -> None:
        super().__init__()
        self.draw = draw
        self.stem, self.extra, self.head = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        if self.training and self.draw():
            x = x + self.extra(x)
        return self.head(x)


class StochasticDepth(nn.Module):
    """A residual branch that is dropped for some samples (as timm's DropPath) and a norm over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch, self.norm = nn.Linear(5, 8), nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(torch.relu(self.branch(x)))
        if self.training:
            y = y.div(0.8) * y.new_empty((len(y),) + (1,) * (y.ndim - 1)).bernoulli_(0.8)
        return self.head(x + y)


def inputs(samples: int = 4) -> Tensor:
    return torch.randn(samples, 5, generator=torch.Generator().manual_seed(0))


def half(model: nn.Module, plan: Plan) -> nn.Module:
    return narrow(model, plan, Index.of_units(plan, {name: range(n) for name, n in plan.counts(0.5).items()}))


def sizes(plan: Plan) -> dict[str, int]:
    return {group.name: group.size for group in plan.groups.values()}


def test_an_auxiliary_head_is_sliced_and_trains_at_half_width() -> None:
    model = Auxiliary()
    plan = trace(model, inputs())
    assert sizes(plan) == {"stem": 8, "body": 12, "auxiliary.0": 6}
    assert ("auxiliary.0.weight", 1) in plan.groups["stem"].members
    assert {(n, d) for n, d, why in plan.frozen() if why == "model output"} == {
        (f"{name}.{kind}", 0) for name in ("head", "auxiliary.2") for kind in ("weight", "bias")
    }
    plan.check(model, inputs())
    small = half(model, plan).train()
    reference = Auxiliary(4, 6, 3)
    reference.load_state_dict(small.state_dict(), strict=True)
    for mine, its in zip(small(inputs()), reference(inputs()), strict=True):
        assert torch.equal(mine, its)
    assert torch.equal(small.eval()(inputs()), reference.eval()(inputs()))


def test_a_plan_of_evaluation_alone_is_refused_in_training_mode() -> None:
    model = Auxiliary()
    plan = trace(model, inputs(), training=False)
    plan.check(model, inputs())
    assert plan.training_passes == 0
    with pytest.raises(PlanError, match="group 'stem' breaks the permutation law in training mode"):
        replace(plan, training_passes=1).check(model, inputs())


def by_torch() -> bool:
    return bool(torch.rand([]) < 0.5)


def by_python() -> bool:
    return random.random() < 0.5


def by_numpy() -> bool:
    return bool(np.random.rand() < 0.5)


@pytest.mark.parametrize("draw", [by_torch, by_python, by_numpy])
def test_a_layer_that_is_drawn_now_and_then_is_seen(draw: Callable[[], bool]) -> None:
    model = Drawn(draw)
    plan = trace(model, inputs())
    assert plan.training_passes > 1
    assert {("extra.weight", 0), ("extra.weight", 1), ("extra.bias", 0)} <= set(plan.groups["stem"].members)
    plan.check(model, inputs())
    small = half(model, plan).train()
    for _ in range(8):
        assert small(inputs()).shape == (4, 3)


def test_drawing_leaves_the_generators_as_they_were() -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)["state"]
    for draw in (by_torch, by_python, by_numpy):
        model = Drawn(draw)
        torch.set_rng_state(states[0])
        trace(model, inputs()).check(model, inputs())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    after = np.random.get_state(legacy=False)["state"]
    assert after["pos"] == states[2]["pos"]
    assert (after["key"] == states[2]["key"]).all()


@pytest.mark.parametrize("samples", [1, 4])
def test_stochastic_depth_and_a_norm_over_the_batch_even_with_one_sample(samples: int) -> None:
    model = StochasticDepth()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plan = trace(model, inputs(samples))
    plan.check(model, inputs(samples))
    assert sizes(plan) == {"stem": 8}
    assert plan.training_passes == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_model_that_fails_only_in_training_says_so() -> None:
    class Wanting(Auxiliary):
        def forward(self, x: Tensor, target: Tensor | None = None) -> Any:
            if self.training and target is None:
                raise ValueError("targets should not be none when in training mode")
            return super().forward(x)

    with pytest.raises(PlanError, match="failed on the example inputs in training mode: targets should not be none"):
        trace(Wanting(), inputs())
    assert list(trace(Wanting(), inputs(), training=False).groups) == ["stem", "body"]
    assert len(trace(Wanting(), (inputs(), torch.zeros(4))).groups) == 3


def test_an_own_way_into_training_mode_is_respected() -> None:
    class Reluctant(StochasticDepth):
        def train(self, mode: bool = True) -> Reluctant:
            super().train(mode)
            self.norm.eval()
            return self

        def forward(self, x: Tensor) -> Tensor:
            assert not self.norm.training
            return super().forward(x)

    model = Reluctant().eval()
    trace(model, inputs()).check(model, inputs())
    assert not any(module.training for module in model.modules())


def test_an_output_of_another_shape_at_half_width_is_named() -> None:
    class Resized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 5, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.last(nn.functional.interpolate(x, scale_factor=float(x.shape[1]) / 8))

    model, pictures = Resized(), torch.randn(2, 3, 8, 8)
    plan = trace(model, pictures)
    with pytest.raises(PlanError, match=r"output 0 has shape \[2, 5, 8, 8\] at half width, and \[2, 5, 16, 16\]"):
        plan.check(model, pictures)
