"""Groups that the caller keeps whole."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import zoo
from fedwidth.core.index import Index
from fedwidth.core.narrow import narrow
from fedwidth.errors import PlanError
from fedwidth.plan.plan import Plan
from fedwidth.plan.trace import trace


def traced(name: str, keep: list[str], heads: str = "within") -> tuple[nn.Module, object, Plan]:
    case = zoo.PLANNED[name]
    model, inputs = zoo.build(case.full), zoo.doubled(case.inputs())
    return model, inputs, trace(model, inputs, heads=heads, output=case.output, keep=keep)


def half(model: nn.Module, plan: Plan) -> nn.Module:
    return narrow(model, plan, Index.of_units(plan, {name: range(n) for name, n in plan.counts(0.5).items()}))


def test_a_group_that_is_kept_is_whole_and_the_others_are_as_they_were() -> None:
    _, _, free = traced("cnn-nchw", [])
    model, inputs, plan = traced("cnn-nchw", ["conv2"])
    assert list(plan.groups) == ["conv1", "fc1"]
    assert all(plan.groups[name] == free.groups[name] for name in plan.groups)
    reasons = {(name, dim): reason for name, dim, reason in plan.frozen()}
    assert {pair for pair, reason in reasons.items() if reason == "kept whole as asked"} == set(
        free.groups["conv2"].members
    )
    plan.check(model, inputs)
    small = half(model, plan)
    assert (small.conv1.out_channels, small.conv2.out_channels, small.fc1.out_features) == (4, 12, 10)


def test_a_pattern_keeps_every_group_that_fits_and_names_stay() -> None:
    _, _, plan = traced("preresnet18", ["blocks.*"])
    assert list(plan.groups) == ["conv1"]
    _, _, plan = traced("lstm", ["rnn"])
    assert "rnn" not in plan.groups
    model, inputs, plan = traced("resnet-bn", ["blocks.0.conv1", "blocks.2.*"])
    assert list(plan.groups) == ["stem", "blocks.1.conv1", "blocks.1.conv2"]
    plan.check(model, inputs)


def test_what_moves_together_with_a_kept_group_is_kept_too() -> None:
    model, inputs, plan = traced("transformer-encoder", ["encoder.layers.0.self_attn.in_proj_weight"])
    # the head size is width / heads: both, and with the width the second layer's heads
    assert sorted(group.size for group in plan.groups.values()) == [48, 48]
    reasons = {name: reason for name, dim, reason in plan.frozen() if name == "embedding.weight" and dim == 1}
    assert "moves together with" in reasons["embedding.weight"]
    plan.check(model, inputs)


def test_keeping_the_size_of_heads_does_not_drop_whole_ones() -> None:
    model, inputs, plan = traced("vit", ["attention.qkv"])
    assert sorted(group.size for group in plan.groups.values()) == [32, 48]
    plan.check(model, inputs)
    assert half(model, plan).attention.qkv.out_features == 96


def test_a_low_rank_adapter_keeps_its_rank() -> None:
    class Adapted(nn.Module):
        """As peft does it: frozen weights beside a product of two small matrices."""

        def __init__(self) -> None:
            super().__init__()
            self.base, self.lora_a, self.lora_b = nn.Linear(6, 16), nn.Linear(6, 4), nn.Linear(4, 16)
            self.out = nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(torch.relu(self.base(x) + self.lora_b(self.lora_a(x))))

    model, inputs = Adapted(), torch.randn(2, 6)
    plan = trace(model, inputs, keep=["lora_*"])
    assert list(plan.groups) == ["base"]
    plan = trace(model, inputs, keep=["base"])
    assert {name: group.size for name, group in plan.groups.items()} == {"lora_a": 4}
    assert half(model, plan).lora_a.out_features == 2


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (["conv9"], "keep names 'conv9', but there is no such width group; there are: conv1, conv2, fc1"),
        ("conv1", r"keep takes a list of names of width groups, such as \['conv1'\]"),
        (3, "keep takes a list of names of width groups, not 3"),
        ([3], r"keep takes a list of names of width groups, not \[3\]"),
        (["*"], "nothing to slice: .* kept whole as asked"),
    ],
)
def test_what_cannot_be_kept_is_named(keep: list[str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        traced("cnn-nchw", keep)
