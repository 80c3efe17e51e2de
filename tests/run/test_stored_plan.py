"""A plan that was stored says what it said; one that is damaged is refused in one line."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import nn

from fedwidth.adapters import adapt
from fedwidth.core.narrow import fits_plan
from fedwidth.errors import StateError
from fedwidth.plan.plan import Coupling, Plan
from fedwidth.plan.trace import trace
from fedwidth.run.weights.stored_plan import plan_as_json, read_plan
from zoo.traced import traced


def mlp(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))


def again(plan: Plan) -> Plan:
    found = read_plan(json.loads(json.dumps(plan_as_json(plan))))
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["vit", "lstm", "mixture"])
def test_a_stored_plan_is_the_plan(name: str) -> None:
    model, plan, _ = traced(name)
    read = again(plan)
    assert all(getattr(read, entry.name) == getattr(plan, entry.name) for entry in fields(Plan))
    assert fits_plan(model, read)


def test_adapters_are_kept() -> None:
    model = adapt(mlp(), 2)
    plan = trace(model, torch.zeros(2, 4))
    read = again(plan)
    assert read.adapters
    assert (read.adapters, read.untrained, read.rank_groups) == (plan.adapters, plan.untrained, plan.rank_groups)


def test_fractions_and_the_plan_before_are_kept_and_profiles_are_not() -> None:
    plan = trace(mlp(), torch.zeros(2, 4))
    more = replace(plan, before=plan, couplings=(Coupling("0", Fraction(3, 2), "1"),), profiles={0.5: {"0": 0.25}})
    read = again(more)
    assert read.couplings == more.couplings
    assert read.before is not None
    assert read.before.axes == plan.axes
    assert read.profiles == {}


def test_no_plan_and_one_of_another_format_are_none() -> None:
    assert read_plan(None) is None
    assert read_plan({"format": 99, "plan": []}) is None


@pytest.mark.parametrize(
    "damaged",
    [
        {"format": 1},
        {"format": 1, "plan": 3},
        {"format": 1, "plan": {"Plan": {}}},
        {"format": 1, "plan": {"os": {}}},
        7,
    ],
)
def test_a_damaged_plan_is_one_line(damaged: Any) -> None:
    with pytest.raises(StateError, match="the plan of the model is damaged: [^\n]*$"):
        read_plan(damaged)


def test_a_plan_of_another_model_does_not_fit() -> None:
    plan, other = trace(mlp(), torch.zeros(2, 4)), mlp()
    assert fits_plan(mlp(), plan)
    assert not fits_plan(mlp(16), plan)
    del other[0].out_features  # other code than when it was traced
    assert not fits_plan(other, plan)
