"""FedImportance: the units with the largest weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.core.submodel import state_of
from fedwidth.methods import method
from fedwidth.methods.fedimportance import scores


def two_layers():
    """Three units whose weights are known: into them, their biases, out of them."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, -1.0], [0.5, 0.5], [-3.0, 0.0]]))
        model[0].bias.copy_(torch.tensor([0.0, 0.0, -1.0]))
        model[2].weight.copy_(torch.tensor([[-2.0, 8.0, 0.0]]))
    return model


def test_scores_by_hand():
    # (1 + 1 + 0 + 2) / 4, (0.5 + 0.5 + 0 + 8) / 4, (3 + 0 + 1 + 0) / 4
    model = two_layers()
    plan = fedwidth.trace(model, torch.randn(2, 2))
    (group,) = plan.groups
    assert scores(plan, group, state_of(model)).tolist() == pytest.approx([1.0, 2.25, 1.0])


def test_the_largest_are_kept_and_of_equal_ones_the_first():
    model = two_layers()
    plan = fedwidth.trace(model, torch.randn(2, 2))
    one, two = (
        method("fedimportance").select(plan, capacity=capacity, state=state_of(model)) for capacity in (1 / 3, 2 / 3)
    )
    (one,), (two,) = one.units.values(), two.units.values()
    assert one.tolist() == [1]
    assert two.tolist() == [0, 1]


def test_pixels_of_a_channel_are_its_weights():
    # Channel 1 has the larger weights in the classifier alone, whose columns are 2 channels x 2 x 2 pixels.
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(8, 3))
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.fill_(1.0)
        model[2].weight[:, 4:] = 2.0
    plan = fedwidth.trace(model, torch.randn(2, 1, 2, 2))
    (group,) = plan.groups
    # 1 weight and 1 bias of 1, and 12 of 1 or 2
    assert scores(plan, group, state_of(model)).tolist() == pytest.approx([1.0, 26 / 14])
