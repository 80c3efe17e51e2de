"""FLANC: worked examples of composition, penalty and averages, by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import fedwidth
from fedwidth.core.factored.composed_layer import ComposedLayer, compose, orthogonal, skewness
from fedwidth.methods import Beginning, Closing, Task, under
from fedwidth.methods.flanc import basis_shape, composed

BASIS = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
FLANC = fedwidth.method("flanc")


def test_kernels_are_composed_of_one_basis_at_two_widths():
    """V = [[1, 0], [1, 1]]: half width, u = (2, 3), gives (5, 3); full width, u = (2, 3, -1, 4), gives (5, 3, 3, 4)."""
    assert compose(BASIS, torch.tensor([[2.0, 3.0]])).tolist() == [[5.0, 3.0]]
    assert compose(BASIS, torch.tensor([[2.0, 3.0, -1.0, 4.0]])).tolist() == [[5.0, 3.0, 3.0, 4.0]]


def test_the_penalty_of_a_basis_that_is_not_orthogonal():
    """B B' - I = [[0, 1], [1, 1]]: its mean square is 0.75, times 10 is 7.5."""
    assert 10 * skewness(BASIS).item() == 7.5
    assert skewness(orthogonal((3, 2, 3, 3), torch.Generator().manual_seed(0))).item() == pytest.approx(0, abs=1e-10)


def test_a_composed_convolution_is_groups_through_the_basis_and_a_mixture():
    """As published: every group of n inputs is convolved with V, then a 1 x 1 convolution mixes all maps."""
    torch.manual_seed(0)
    layer = ComposedLayer(nn.Conv2d(6, 5, 3, stride=2, padding=1), (4, 2, 3, 3))
    nn.init.normal_(layer.basis)
    nn.init.normal_(layer.coefficients)
    inputs = torch.randn(2, 6, 7, 7)
    maps = [functional.conv2d(part, layer.basis, stride=2, padding=1) for part in inputs.split(2, dim=1)]
    expected = functional.conv2d(torch.cat(maps, 1), layer.coefficients[:, :, None, None], layer.bias)
    torch.testing.assert_close(layer(inputs), expected, rtol=1e-4, atol=1e-4)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


PLAN = fedwidth.trace(net(), torch.randn(2, 3))


def begun(**options):
    method = fedwidth.method("flanc", **options)
    return Beginning(fedwidth.state_of(net()), PLAN, enrolled=(1.0, 0.5, 0.25), options=method.values)


def test_the_basis_fits_every_width():
    assert composed(PLAN) == ["2.weight"]
    assert basis_shape(PLAN, "2.weight", [1.0, 0.5, 0.25], FLANC.values) == (2, 1)
    halves = fedwidth.method("flanc", basis_fraction=0.5).values
    assert basis_shape(PLAN, "2.weight", [1.0, 0.5, 0.25], halves) == (2, 2), "8, 4 and 2 inputs: n = 2 divides all"


def test_bases_are_averaged_over_all_clients_and_coefficients_over_those_of_a_width():
    """V = [[1, 0], [1, 1]] and [[3, 0], [1, 3]] give [[2, 0], [1, 2]]; the two u stay apart."""
    beginning = begun(basis_fraction=0.5)
    memory = FLANC.first_memory(beginning)
    tasks, sums = [], []
    bases = {0.5: BASIS, 1.0: torch.tensor([[3.0, 0.0], [1.0, 3.0]])}
    for place, (width, basis) in enumerate(bases.items()):
        part = FLANC.select(PLAN, capacity=width, memory=memory)
        sub = part.cut(beginning.state, PLAN)
        sub["2.basis"] = basis
        sub["2.coefficients"] = torch.full_like(sub["2.coefficients"], width)
        tasks.append(Task(place, width, part, place))
        sums.append(part.accumulator())
        sums[-1].add(fedwidth.Update(sub, part, 1.0))
    closing = Closing(beginning.state, sums, PLAN, memory=memory, tasks=tasks, options=FLANC.values)
    new, state = FLANC.remember(closing), FLANC.finish(closing)
    assert under(new, "basis")["2.weight"].tolist() == [[2.0, 0.0], [1.0, 2.0]]
    assert set(under(new, "width.0.5")["2.coefficients"].unique().tolist()) == {0.5}
    assert set(under(new, "width.1")["2.coefficients"].unique().tolist()) == {1.0}
    assert all(torch.equal(under(new, "width.0.25")[n], t) for n, t in under(memory, "width.0.25").items())
    torch.testing.assert_close(state["2.weight"], compose(under(new, "basis")["2.weight"], torch.ones(8, 8)))


def test_a_client_trains_a_working_narrow_model():
    memory = FLANC.first_memory(begun())
    part = FLANC.select(PLAN, capacity=0.25, memory=memory)
    module = part.module(net(), PLAN)
    module.load_state_dict(part.cut({}, PLAN))
    assert module(torch.randn(2, 3)).shape == (2, 2)
    assert module[2].weight.shape == (2, 2)


def test_no_model_is_wider_than_the_widest_device():
    narrow = Beginning(fedwidth.state_of(net()), PLAN, enrolled=(0.5, 0.25), options=FLANC.values)
    with pytest.raises(fedwidth.FedwidthError, match=r"wider than the widest device, which has 0\.5.*model\.width"):
        FLANC.first_memory(narrow)
    with pytest.raises(fedwidth.FedwidthError, match=r"has none of 0\.1"):
        FLANC.select(PLAN, capacity=0.1, memory=FLANC.first_memory(begun()))
