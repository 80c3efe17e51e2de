"""Parts tutor the whole: the loss by hand, alike side by side and one by one, and HeteroFL where nobody teaches."""

import pytest
import torch
from reproduction.tutor import METHOD, loss
from torch import nn
from torch.nn.functional import cross_entropy

import fedwidth
from fedwidth.core.index import Index
from fedwidth.experiment import Experiment
from fedwidth.plan import trace
from small_runs import same, small

TUTOR = ("method.name=reproduction.tutor:METHOD", "method.options.weight=0.5")


class Pass:
    """A client's pass through a model of two layers, whose narrower part is its first hidden units."""

    def __init__(self, model, width):
        self.model, self.width, self.capacity, self.options = model, width, 1.0, {"weight": 0.5}

    def logits(self, inputs):
        return self.model(inputs)

    def loss(self, logits, targets):
        return cross_entropy(logits, targets)

    def mean(self, values, targets):
        del targets
        return values.mean()

    def narrower(self, width, inputs):
        first, _, last = self.model
        kept = int(width * len(first.weight))
        hidden = (inputs @ first.weight[:kept].T + first.bias[:kept]).relu()
        return hidden @ last.weight[:, :kept].T + last.bias


def test_the_loss_is_that_of_the_labels_and_a_share_of_the_divergence_from_the_part():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5))
    inputs, targets = torch.randn(6, 3), torch.arange(6) % 5
    one = Pass(model, 0.5)
    said, own = one.narrower(0.5, inputs).softmax(-1), model(inputs).softmax(-1)
    by_hand = cross_entropy(model(inputs), targets) + 0.5 * (said * (said / own).log()).sum(-1).mean()
    found = loss(one, inputs, targets)
    torch.testing.assert_close(found, by_hand)
    # The part is not taught: the gradient of the divergence is the student's probabilities less the tutor's.
    found.backward()
    labels = torch.nn.functional.one_hot(targets, 5).float()
    wanted = ((own - labels) / 6 + 0.5 * (own - said) / 6).sum(0)
    torch.testing.assert_close(model[2].bias.grad, wanted)
    torch.testing.assert_close(loss(Pass(model, 1.0), inputs, targets), cross_entropy(model(inputs), targets))


def test_clients_hold_what_heterofl_hands_out():
    plan = trace(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)), torch.zeros(2, 5))
    for capacity in (1 / 4, 1 / 2, 1):
        theirs = fedwidth.method("heterofl").select(plan, capacity=capacity, round=3)
        assert isinstance(theirs, Index)
        assert METHOD.select(plan, capacity=capacity, round=3).key == theirs.key


def test_with_no_weight_it_trains_as_heterofl():
    tutor = Experiment(small("method.name=reproduction.tutor:METHOD", "method.options.weight=0")).run()
    assert same(tutor.server.state, Experiment(small("method.name=heterofl")).run().server.state)
    taught = Experiment(small(*TUTOR)).run()
    assert not same(tutor.server.state, taught.server.state)


@pytest.mark.parametrize(("engine", "within"), [("cuda", 1e-6), ("processes", 0.0)])
def test_side_by_side_it_trains_as_one_by_one(engine, within):
    alone, other = (Experiment(small(*TUTOR, *more)).run().server.state for more in ((), (f"engine={engine}",)))
    for name in alone:
        torch.testing.assert_close(other[name], alone[name], atol=within, rtol=0)
