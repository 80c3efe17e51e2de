"""Attributes that state a width and that no forward pass reads follow it; those that are read are never guessed."""

import torch
from torch import nn

import fedwidth


class Backbone(nn.Module):
    """As timm has it: `num_features` and `embed_dim` are for those who build on the model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_dim = self.num_features = 24
        self.num_classes = 5
        self.depth = 24  # a number of the same size that is no width
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.body = nn.Conv2d(8, 24, 3, padding=1)
        self.head = nn.Linear(24, 5)

    def forward(self, x):
        return self.head(torch.relu(self.body(torch.relu(self.stem(x)))).mean((2, 3)))


class Reading(Backbone):
    """The forward pass itself computes with the number, which the narrow model must keep as the code says."""

    def forward(self, x):
        return (
            self.head(torch.relu(self.body(torch.relu(self.stem(x)))).mean((2, 3))) + x.new_ones(self.embed_dim).sum()
        )


def half(model):
    plan = fedwidth.trace(model, torch.zeros(2, 3, 8, 8))
    plan.check(model, torch.randn(2, 3, 8, 8))
    return fedwidth.narrow(model, plan, fedwidth.method("heterofl").select(plan, capacity=0.5))


def test_stated_widths_follow():
    small = half(Backbone())
    assert (small.num_features, small.embed_dim, small.body.out_channels) == (12, 12, 12)
    assert (small.num_classes, small.depth) == (5, 24)


def test_at_full_width_nothing_changes():
    model = Backbone()
    plan = fedwidth.trace(model, torch.zeros(2, 3, 8, 8))
    same = fedwidth.narrow(model, plan, fedwidth.Index.whole(plan))
    assert (same.num_features, same.embed_dim) == (24, 24)


def test_what_is_read_is_left_to_the_equations():
    small = half(Reading())
    assert small.num_features == 12
    assert small.embed_dim == 24, "a size in the code: it states no axis of a tensor"
