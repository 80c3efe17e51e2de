"""Layers whose place another layer that computes the same may take."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d)


def plain_layers(model: nn.Module, tied: Mapping[str, str]) -> dict[str, int]:
    """The weights of linear and convolution layers and their numbers of groups, in the model's order.

    Left out are subclasses, weights that are computed (as `torch.nn.utils.parametrize` does) and weights with a second
    name: there more than the layer's own arithmetic is at stake.

    >>> plain_layers(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), {})
    {'0.weight': 1, '2.weight': 1}
    """
    shared = {*tied, *tied.values()}
    found = {}
    for name, module in model.named_modules():
        weight = f"{name}.weight"
        if name and type(module) in KINDS and "weight" in module._parameters and weight not in shared:
            found[weight] = int(getattr(module, "groups", 1))
    return found
