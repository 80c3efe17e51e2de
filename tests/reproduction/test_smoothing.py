"""Answers pulled towards all classes alike: the loss by hand, label smoothing where nothing is masked, any method."""

import pytest
import torch
from reproduction.smoothing import loss
from torch.nn.functional import cross_entropy

from fedwidth.experiment import Experiment
from small_runs import same, small

SMOOTHING = ("local.name=reproduction.smoothing:METHOD", "local.options.weight=0.5")


class Pass:
    """A client's pass whose answers are the inputs, and which masks the logits of some classes."""

    def __init__(self, weight, masked=()):
        self.options, self.masked = {"weight": weight}, list(masked)

    def logits(self, inputs):
        return inputs

    def loss(self, logits, targets):
        kept = logits.clone()
        kept[:, self.masked] = 0.0
        return cross_entropy(kept, targets)

    def mean(self, values, targets):
        del targets
        return values.mean()


def test_where_nothing_is_masked_it_is_label_smoothing():
    torch.manual_seed(0)
    logits, targets = torch.randn(6, 5), torch.arange(6) % 5
    share, entropy = 0.5 / 1.5, torch.log(torch.tensor(5.0))
    smoothed = cross_entropy(logits, targets, label_smoothing=share)
    torch.testing.assert_close(loss(Pass(0.5), logits, targets), 1.5 * smoothed - 0.5 * entropy)


def test_classes_that_the_plain_loss_masks_are_pulled_too():
    logits = torch.tensor([[2.0, 0.0, 1.0]], requires_grad=True)
    loss(Pass(0.5, masked=[2]), logits, torch.tensor([0])).backward()
    own = logits.detach().softmax(-1)[0]
    # The masked class has no gradient by the label: what is left is its probability less a third, times the weight.
    assert logits.grad[0, 2].item() == pytest.approx(0.5 * (own[2].item() - 1 / 3))


def test_it_goes_with_any_method_and_engine_and_without_weight_changes_nothing():
    plain = Experiment(small("method.name=heterofl")).run().server.state
    silent = Experiment(small("method.name=heterofl", SMOOTHING[0], "local.options.weight=0")).run().server.state
    alone = Experiment(small("method.name=heterofl", *SMOOTHING)).run().server.state
    stacked = Experiment(small("method.name=heterofl", *SMOOTHING, "engine=vectorised")).run().server.state
    assert same(plain, silent)
    assert not same(plain, alone)
    for name in alone:
        torch.testing.assert_close(stacked[name], alone[name], atol=1e-5, rtol=0)
