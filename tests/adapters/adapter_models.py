"""Small models with adapters, and their plans, for the tests of adapters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fedwidth
from fedwidth.plan import Plan


def base() -> nn.Module:
    """A network of linear layers, from a fixed seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def convolutional() -> nn.Module:
    """A network of convolutions: strided, dilated, with padding by reflection, and 1 x 1."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return nn.Sequential(
            nn.Conv2d(2, 6, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(6, 5, 3, dilation=2, padding=2, padding_mode="reflect"),
            nn.Conv2d(5, 4, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        )


def filled(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with every factor drawn, so that no unit adds nothing."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=draws) / 2)
    return model


def rank_plan(model: nn.Module, example: Tensor) -> Plan:
    """The plan in which ranks are sliced and widths are whole."""
    plan = fedwidth.trace(model, example)
    return fedwidth.trace(model, example, keep=[name for name in plan.groups if name not in plan.rank_groups])
