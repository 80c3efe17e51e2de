"""The server's own arithmetic is exact where a GPU rounds what it multiplies in single precision (TF32)."""

import numpy as np
import torch
from torch import nn

import fedwidth
from fedwidth.adapters import adapt
from fedwidth.core.factored.factors import Factors
from fedwidth.core.folding import fold
from fedwidth.core.index import Index
from fedwidth.methods import Beginning
from fedwidth.methods.fedbe import dirichlet_sample, paper_sample
from fedwidth.methods.flanc import init, whole_model
from rough_products import RoughProducts


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))


PLAN, STATE = fedwidth.trace(net(), torch.randn(2, 4)), fedwidth.state_of(net())


def exact(compute):
    """Whether rough products change no bit of what is computed."""
    plain = compute()
    with RoughProducts():
        return torch.equal(plain, compute())


def test_products_are_played_roughly():
    assert not exact(lambda: STATE["2.weight"] @ STATE["2.weight"])


def test_factors_of_fedhm_that_nobody_trained_give_the_weight_back():
    part = Factors(PLAN, "separable", {"2.weight": tuple(range(32))})
    with RoughProducts():
        found = part.products(part.cut(STATE, PLAN), PLAN)["2.weight"]
    torch.testing.assert_close(found, STATE["2.weight"], rtol=0, atol=1e-7)


def test_models_that_fedbe_draws():
    """Clients differ by a thousandth of their weights, which TF32 would drown."""
    models = torch.stack([STATE["2.weight"] * (1 + 1e-3 * client) for client in range(4)])
    shares, noise = np.array([0.1, 0.2, 0.3, 0.4]), torch.ones(32, 32)
    assert exact(lambda: paper_sample(models, shares, STATE["2.weight"], noise))
    assert exact(lambda: dirichlet_sample(models, shares, shares))


def test_kernels_that_flanc_composes():
    options = fedwidth.method("flanc").values
    memory = init(Beginning(STATE, PLAN, enrolled=(1.0, 0.5), options=options))
    assert exact(lambda: whole_model(memory, STATE)["2.weight"])


def test_units_of_adapters_that_a_client_does_not_hold():
    model = adapt(net(), rank=4)
    plan, draws = fedwidth.trace(model, torch.randn(2, 4)), torch.Generator().manual_seed(0)
    state = {name: torch.randn(tensor.shape, generator=draws) for name, tensor in fedwidth.state_of(model).items()}
    index = Index.of_units(plan, {name: range(count) for name, count in plan.counts(0.5).items()})
    assert fold(state, index)
    for name in fold(state, index):
        assert exact(lambda name=name: fold(state, index)[name])
