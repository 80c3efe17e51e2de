"""Weights as products of two factors: the same function at full rank, products in place of factors in sums."""

import math
import pickle

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.core.factored.decomposition import (
    CHANNELS,
    SEPARABLE,
    by_gram,
    decompose,
    from_matrices,
    hidden_layers,
    matrix_shape,
    to_matrices,
)
from fedwidth.core.factored.factored_layer import FactoredLayer, product_norm
from fedwidth.core.factored.factors import Factors, factor_names

READINGS = (SEPARABLE, CHANNELS)
LAYERS = {
    "linear": (lambda: nn.Linear(5, 7), (3, 5)),
    "linear of a sequence": (lambda: nn.Linear(5, 7, bias=False), (3, 4, 5)),
    "1 x 1": (lambda: nn.Conv2d(4, 6, 1), (2, 4, 5, 5)),
    "strided": (lambda: nn.Conv2d(4, 6, 3, stride=(2, 1), padding=(1, 2)), (2, 4, 9, 8)),
    "dilated": (lambda: nn.Conv2d(4, 6, (3, 2), dilation=(2, 3), padding=3), (2, 4, 9, 8)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1, bias=False), (2, 4, 7, 7)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, stride=2), (2, 4, 7, 7)),
    "same": (lambda: nn.Conv2d(4, 6, (3, 5), padding="same", dilation=(2, 1)), (2, 4, 7, 7)),
    "circular": (lambda: nn.Conv2d(4, 6, 3, padding=(1, 2), padding_mode="circular"), (2, 4, 7, 7)),
    "reflected": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect", stride=2), (2, 4, 7, 7)),
    "1-D": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9)),
}


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("kind", LAYERS)
def test_with_all_components_two_layers_compute_what_one_did(kind, reading):
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    layer, inputs = make().double(), torch.randn(shape, dtype=torch.float64)
    up, down, values = decompose(layer.weight, getattr(layer, "groups", 1), reading)
    assert up.shape[2] == down.shape[1] == values.shape[1] == min(up.shape[1], down.shape[2])
    factored = FactoredLayer(layer, reading, up.shape[1], up.shape[2], down.shape[2])
    factored.up.data.copy_(up)
    factored.down.data.copy_(down)
    torch.testing.assert_close(factored(inputs), layer(inputs))
    torch.testing.assert_close(factored.weight, layer.weight.detach())
    back = from_matrices(to_matrices(layer.weight, getattr(layer, "groups", 1), reading), layer.weight.shape, reading)
    assert torch.equal(back, layer.weight)


def model():
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, padding=1), nn.ReLU())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5))


INPUTS = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def plan():
    return fedwidth.trace(model(), INPUTS)


def test_inner_layers_are_those_that_touch_neither_input_nor_output(plan):
    assert hidden_layers(plan) == ["2.weight", "6.weight"]
    assert matrix_shape(plan, "2.weight", SEPARABLE) == (1, 36, 24)
    assert matrix_shape(plan, "2.weight", CHANNELS) == (1, 12, 72)
    assert matrix_shape(plan, "6.weight", SEPARABLE) == (1, 16, 12)


def test_layers_that_are_more_than_their_arithmetic_stay_whole():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.one, self.two, self.last = (nn.Linear(*s) for s in ((3, 4), (4, 4), (4, 4), (4, 2)))
            self.two.weight = self.one.weight
            self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

        def forward(self, x):
            return self.last(self.normed(self.two(self.one(self.first(x)))))

    assert hidden_layers(fedwidth.trace(Tied(), torch.randn(2, 3))) == []


@pytest.mark.parametrize("reading", READINGS)
def test_a_part_with_all_components_is_the_model_and_comes_back_as_it(plan, reading):
    net, state = model(), fedwidth.state_of(model())
    ranks = {name: min(matrix_shape(plan, name, reading)[1:]) for name in hidden_layers(plan)}
    part = Factors(plan, reading, {name: tuple(range(rank)) for name, rank in ranks.items()})
    sub = part.cut(state, plan)
    assert set(factor_names("2.weight")) == {"2.up", "2.down"} <= set(sub)
    assert "2.weight" not in sub
    module = part.module(net, plan)
    module.load_state_dict(sub)
    torch.testing.assert_close(module(INPUTS), net(INPUTS))
    total = part.accumulator()
    total.add(fedwidth.Update(sub, part, 2.0))
    new = fedwidth.finalise(state, [total], plan)
    for name, tensor in state.items():
        torch.testing.assert_close(new[name], tensor)
    assert torch.equal(new["0.weight"], state["0.weight"]), "what is not factored keeps its bits"


def test_products_are_averaged_not_factors():
    """Two clients, u = v = (2, 0) and u = v = (1, 0): the mean of products is 2.5, the product of means 2.25."""
    torch.manual_seed(1)
    linear = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
    small = fedwidth.trace(linear, torch.randn(2, 2))
    part = Factors(small, CHANNELS, {"1.weight": (0,)}, keeps_factors=True)
    total = part.accumulator()
    for value in (2.0, 1.0):
        sub = part.cut(fedwidth.state_of(linear), small)
        sub["1.up"], sub["1.down"] = torch.tensor([[[value], [0.0]]]), torch.tensor([[[value, 0.0]]])
        total.add(fedwidth.Update(sub, part, 1.0))
    assert total.mean["1.weight"].tolist() == [[2.5, 0.0], [0.0, 0.0]]
    assert (total.factors["1.up"] @ total.factors["1.down"])[0].tolist() == [[2.25, 0.0], [0.0, 0.0]]


def test_a_part_costs_what_its_layers_hold(plan):
    part = Factors(plan, SEPARABLE, {"2.weight": (0, 1), "6.weight": (0,)})
    cost = part.cost(model(), plan, INPUTS, capacity=0.25)
    whole = 8 * 27 + 8 + 12 + 16 + 16 * 5 + 5  # first layer, biases, last layer
    assert cost.parameters == whole + 2 * (36 + 24) + 1 * (16 + 12)
    assert cost.bytes == 4 * cost.parameters
    macs = 36 * (8 * 27 + 2 * 24 + 2 * 36) + (12 + 16) + 16 * 5
    assert cost.macs == macs
    assert 0 < cost.share < 1


def test_a_part_travels_to_workers_without_the_plan(plan):
    part = Factors(plan, SEPARABLE, {"2.weight": (0, 1)})
    arrived = pickle.loads(pickle.dumps(part))
    assert (arrived.key, arrived.size, arrived.plan) == (part.key, part.size, None)
    assert len(pickle.dumps(part)) < 500


def test_the_norm_of_products_needs_no_product(plan):
    part = Factors(plan, SEPARABLE, {"2.weight": (0, 1, 2), "6.weight": (0, 1)})
    module = part.module(model(), plan)
    module.load_state_dict(part.cut(fedwidth.state_of(model()), plan))
    direct = sum(module.get_submodule(name).weight.square().sum() for name in ("2", "6"))
    assert product_norm(module).item() == pytest.approx(direct.item(), rel=1e-5)
    assert product_norm(model()).item() == 0.0


def test_an_update_without_its_factors_or_with_nonsense_is_refused(plan):
    part = Factors(plan, SEPARABLE, {"2.weight": (0, 1)})
    sub = part.cut(fedwidth.state_of(model()), plan)
    with pytest.raises(fedwidth.FedwidthError, match=r"lacks the factors of '2\.weight'"):
        part.accumulator().add(fedwidth.Update({n: t for n, t in sub.items() if n != "2.up"}, part, 1.0))
    sub["2.up"] = torch.full_like(sub["2.up"], math.nan)
    with pytest.raises(fedwidth.FedwidthError, match=r"2\.weight.*not finite"):
        part.accumulator().add(fedwidth.Update(sub, part, 1.0, client=3))


@pytest.mark.parametrize("shape", [(1, 7, 7), (2, 5, 20), (3, 20, 5), (4, 1, 9)])
def test_a_decomposition_by_the_gram_matrix_is_that_of_singular_values(shape):
    matrices = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrices[0, -1] = 0.0
    left, values, right = by_gram(matrices)
    usual = torch.linalg.svd(matrices, full_matrices=False)
    torch.testing.assert_close(values, usual[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(left * values[:, None, :] @ right, matrices, rtol=1e-12, atol=1e-12)
    kept = min(shape[1:]) - 1  # the last value of the first matrix may be 0, and its vectors any
    best = (each[0] for each in (left[:, :, :kept], values[:, None, :kept], right[:, :kept]))
    one, two, three = best
    usual_best = usual[0][0, :, :kept] * usual[1][0, :kept] @ usual[2][0, :kept]
    torch.testing.assert_close(one * two @ three, usual_best, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("reading", READINGS)
def test_on_a_gpu_components_are_those_of_the_cpu(reading):
    weight = torch.randn(64, 32, 3, 3, generator=torch.Generator().manual_seed(0))
    up, down, values = (tensor.cpu() for tensor in decompose(weight.cuda(), 1, reading))
    usual_up, usual_down, usual = decompose(weight, 1, reading)
    torch.testing.assert_close(values, usual, rtol=1e-5, atol=1e-5)
    for kept in (8, len(values[0])):
        torch.testing.assert_close(
            up[:, :, :kept] @ down[:, :kept], usual_up[:, :, :kept] @ usual_down[:, :kept], rtol=1e-4, atol=1e-4
        )
