"""One trunk, several heads: between HeteroFL and FedMosaic, and a sum of networks."""

import pytest
import torch
from reproduction.fork import METHOD
from torch import nn

import fedwidth
from fedwidth.core.narrow import narrow
from fedwidth.methods import Beginning
from fedwidth.plan import trace

WIDTH = 1 / 4


@pytest.fixture
def made():
    torch.manual_seed(1)
    hidden = [layer for _ in range(2) for layer in (nn.Linear(8, 8), nn.ReLU())]
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), *hidden, nn.Linear(8, 3))
    return model, trace(model, torch.zeros(2, 5))


def begun(method, model, plan, enrolled):
    return method.first_state(Beginning(fedwidth.state_of(model), plan, enrolled=enrolled, options=method.values))


@pytest.mark.parametrize(("trunk", "other"), [(1.0, "heterofl"), (0.0, "fedmosaic")])
def test_with_nothing_but_a_trunk_it_is_heterofl_and_without_one_fedmosaic(made, trunk, other):
    _, plan = made
    mine, theirs = METHOD.with_options(trunk=trunk), fedwidth.method(other)
    for round, client in ((0, 0), (1, 0), (2, 3)):
        asked = dict(capacity=WIDTH, round=round, client=client, clients=4)
        assert mine.select(plan, **asked).key == theirs.select(plan, **asked).key


def test_without_a_trunk_it_starts_as_fedmosaic(made):
    mine, theirs = (
        begun(method, *made, [WIDTH]) for method in (METHOD.with_options(trunk=0.0), fedwidth.method("fedmosaic"))
    )
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(("trunk", "heads"), [(1.0, 1), (2 / 3, 4), (1 / 3, 4)])
def test_the_server_s_model_is_the_sum_of_its_heads(made, trunk, heads):
    model, plan = made
    method = METHOD.with_options(trunk=trunk)
    model.load_state_dict(begun(method, model, plan, [WIDTH]))
    inputs = torch.randn(6, 5)
    answers = []
    for client in range(heads):
        index = method.select(plan, capacity=WIDTH, round=0, client=client, clients=4)
        answers.append(narrow(model, plan, index)(inputs) - model[-1].bias)
    torch.testing.assert_close(model(inputs) - model[-1].bias, sum(answers))
