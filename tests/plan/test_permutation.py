"""All groups are reordered at once: a plan that takes one group for two is noticed, however few units they have."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from fedwidth.errors import PlanError
from fedwidth.plan.axis import Units
from fedwidth.plan.plan import Group, Plan
from fedwidth.plan.shaken import Shaken
from fedwidth.plan.trace import trace


def chain(width: int, layers: int) -> nn.Sequential:
    """Layers of one width, each with a group of its own."""
    torch.manual_seed(0)
    widths = [4, *[width] * layers]
    found = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*found, nn.Linear(width, 3))


def split(plan: Plan, name: str) -> Plan:
    """The plan with the last member of a group in a group of its own."""
    group = plan.groups[name]
    *members, (tensor, dim) = group.members
    axes = list(plan.axes[tensor])
    axes[dim] = Units("other", group.size)
    groups = dict(plan.groups) | {name: replace(group, members=tuple(members))}
    groups["other"] = Group("other", group.size, ((tensor, dim),))
    return replace(plan, axes={**plan.axes, tensor: tuple(axes)}, groups=groups)


@pytest.mark.parametrize("width", [2, 3, 5, 8])
@pytest.mark.parametrize("layers", [1, 2, 3, 6])
def test_one_group_taken_for_two_is_noticed(width: int, layers: int) -> None:
    model, inputs = chain(width, layers), torch.randn(3, 4)
    plan = trace(model, inputs)
    plan.check(model, inputs)
    assert len(plan.groups) == layers
    for name in plan.groups:
        with pytest.raises(PlanError, match=f"group '({name}|other)' breaks the permutation law"):
            split(plan, name).check(model, inputs)


class Writes(nn.Module):
    """Its forward pass writes into a parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        with torch.no_grad():
            self.first.bias.mul_(1.5)
            self.mean.add_(x.mean(0))
        return self.last(x + self.first.bias - self.mean)


def test_passes_do_not_see_what_others_wrote() -> None:
    model, inputs = Writes(), torch.randn(3, 4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trace(model, inputs).check(model, inputs)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_no_two_rows_or_columns_of_a_large_tensor_of_zeros_are_alike() -> None:
    names = {"one": nn.Parameter(torch.zeros(1200, 1700)), "other": nn.Parameter(torch.zeros(1200, 1700))}
    state = Shaken(names).state(torch.float64)
    for tensor in state.values():
        assert len(tensor.sum(0).unique()) == 1700
        assert len(tensor.sum(1).unique()) == 1200
    assert (state["one"] != state["other"]).all()


def test_what_is_not_finite_is_left_in_buffers_and_out_of_parameters() -> None:
    values = torch.tensor([-torch.inf, 2.0, 4.0])
    state = Shaken({"mask": values, "weight": nn.Parameter(values), "none": torch.empty(0)}).state(torch.float64)
    assert state["mask"][0] == -torch.inf
    assert (state["mask"][1:] >= values[1:]).all()
    assert torch.isfinite(state["weight"]).all()
    assert (state["weight"][1:] - values[1:]).abs().max() <= 1.5  # half of the mean size, 3
    assert state["none"].shape == (0,)
