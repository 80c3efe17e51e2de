"""Cost of sub-models: FedRolex Table 7, and small models counted by hand."""

from fractions import Fraction

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth import models
from fedwidth.core.cost import CAPACITIES, average, capacity_for, cost
from fedwidth.core.measurement import backward_macs, measure
from fedwidth.errors import CapacityError, OptionError

MIB = 2**20


@pytest.fixture(scope="module")
def table():
    model, inputs = models.build("preresnet18"), models.example_inputs("preresnet18")
    return cost(model, fedwidth.trace(model, inputs), inputs, CAPACITIES, rounding="ceil")


def test_table_7_parameters_and_sizes(table):
    assert [round(c.parameters / 1e6, digits) for c, digits in ((table[0], 4), (table[-1], 5))] == [11.1722, 0.04451]
    assert [round(c.bytes / MIB, 2) for c in (table[0], table[-1])] == [42.62, 0.17]
    assert [c.share for c in (table[0], table[-1])] == [1.0, 44_510 / 11_172_170]


def test_table_7_averages(table):
    mean = average(table)
    assert round(mean.parameters / 1e6, 3) == 2.978
    assert round(mean.bytes / MIB, 2) == 11.36
    # The paper averages its rounded numbers, hence the last digits.
    assert mean.operations / 1e6 == pytest.approx(149.048384, abs=2e-5)


def test_table_7_operations(table):
    assert [round(c.macs / 1e6, 2) for c in (table[0], table[-1])] == [555.42, 2.27]
    assert round(table[0].operations / 1e6, 3) == 557.656
    assert round(table[-1].operations / 1e6, 5) == 2.41318


def test_published_transformer_has_the_published_parameters_at_every_width():
    published = {"vocabulary": 10_000, "head_size": 16, "activation": "gelu", "positions": 64, "mask_token": True}
    model, inputs = models.build("transformer", **published), models.example_inputs("transformer")
    costs = cost(model, fedwidth.trace(model, inputs), inputs, CAPACITIES)
    assert [c.parameters for c in costs] == [4_374_416, 1_745_744, 766_256, 360_224, 178_136]


def test_buffers_are_counted_beside_the_parameters(table):
    # Seventeen norms, each with mean, variance (float32) and a 64-bit counter.
    channels = 64 * 5 + 128 * 4 + 256 * 4 + 512 * 4
    assert table[0].buffer_bytes == 2 * 4 * channels + 17 * 8
    assert table[-1].buffer_bytes == 2 * 4 * channels // 16 + 17 * 8


def mlp():
    model = models.build("mlp", data_shape=(6,), hidden=(8, 4), classes=3)
    inputs = torch.zeros(2, 6)
    return model, fedwidth.trace(model, inputs), inputs


def test_mlp_by_hand():
    model, plan, inputs = mlp()
    (half,) = cost(model, plan, inputs, [0.5])
    assert half.capacity == 0.5
    assert half.parameters == (6 * 4 + 4) + (4 * 2 + 2) + (2 * 3 + 3)
    assert half.bytes == 4 * half.parameters
    assert half.buffer_bytes == 0
    assert half.macs == 6 * 4 + 4 * 2 + 2 * 3
    assert half.operations == 2 * half.macs
    assert half.activation_bytes == 4 * (6 + 4 + 2)  # what the three linear layers were given
    assert half.share == half.parameters / ((6 * 8 + 8) + (8 * 4 + 4) + (4 * 3 + 3))
    assert half.memory(batch=10, moments=2) == 4 * half.bytes + 10 * half.activation_bytes


def test_rounding_is_the_plans():
    model, plan, inputs = mlp()
    (floor,), (ceil,) = (cost(model, plan, inputs, [0.3], rounding=rounding) for rounding in ("floor", "ceil"))
    assert floor.parameters == (6 * 2 + 2) + (2 * 1 + 1) + (1 * 3 + 3)
    assert ceil.parameters == (6 * 3 + 3) + (3 * 2 + 2) + (2 * 3 + 3)


def test_counts_do_not_depend_on_the_example_batch():
    model = models.build("cnn", data_shape=(1, 8, 8), widths=(4, 6))
    found = []
    for samples in (1, 2, 4):
        inputs = torch.zeros(samples, 1, 8, 8)
        (half,) = cost(model, fedwidth.trace(model, inputs), inputs, [0.5])
        found.append((half.macs, half.operations))
    assert found == [(64 * 1 * 2 * 9 + 16 * 2 * 3 * 9 + 3 * 10, found[0][1])] * 3
    assert found[0][1] == found[0][0] + 3 * 10 + 4 * (64 * 2 + 16 * 3)


def test_the_model_is_left_as_it_was():
    model, plan, inputs = mlp()
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    random = torch.get_rng_state()
    cost(model, plan, inputs, [1, 0.5])
    assert model.training
    assert not any(parameter.is_meta for parameter in model.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_tied_weights_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(7, 4)
            self.out = nn.Linear(4, 7, bias=False)
            self.out.weight = self.words.weight

        def forward(self, tokens):
            return self.out(self.words(tokens))

    model, tokens = Tied(), torch.zeros(2, 5, dtype=torch.long)
    full, half = cost(model, fedwidth.trace(model, tokens), tokens, [1, 0.5])
    assert (full.parameters, half.parameters) == (7 * 4, 7 * 2)
    assert (full.bytes, half.macs) == (4 * 7 * 4, 5 * 2 * 7)


def test_a_model_that_is_run_for_real_gets_its_inputs_on_its_own_device():
    """The meta device stands for one that the inputs are not on."""

    def refused():
        raise RuntimeError

    made = iter([refused, lambda: nn.Linear(3, 2, device="meta")])
    inputs = torch.zeros(2, 3)
    assert measure(refused, lambda: nn.Linear(3, 2, device="meta"), inputs).macs == 6
    assert backward_macs(lambda: next(made)(), inputs) == 6


def test_a_model_that_looks_at_its_values_is_run_for_real():
    class Peeking(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * (2 if x.sum().item() > 0 else 1)

    model, inputs = Peeking(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(2, 3)
    (half,) = cost(model, fedwidth.trace(model, inputs), inputs, [0.5])
    assert half.macs == 3 * 2 + 2 * 2


def test_inputs_may_be_keyword_arguments():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

        def forward(self, x, *, scale):
            return self.layers(x) * scale

    model, inputs = Scaled(), {"x": torch.ones(2, 3), "scale": 2.0}
    (half,) = cost(model, fedwidth.trace(model, inputs), inputs, [0.5])
    assert half.macs == 3 * 2 + 2 * 2


@pytest.mark.parametrize("capacities", [0.5, 1, Fraction(1, 2), "1/2"])
def test_capacities_are_a_list(capacities):
    model, inputs = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), torch.randn(2, 3)
    with pytest.raises(OptionError, match=r"capacities are a list, such as \[1, 0.5\], not "):
        cost(model, fedwidth.trace(model, inputs), inputs, capacities)


def test_average_needs_something():
    with pytest.raises(OptionError, match="at least one"):
        average([])


def test_capacity_is_the_largest_that_fits():
    model, plan, inputs = mlp()
    costs = {c.capacity: c for c in cost(model, plan, inputs, CAPACITIES)}
    half = costs[Fraction(1, 2)]
    assert capacity_for(model, plan, inputs, parameters=1e9) == 1
    assert capacity_for(model, plan, inputs, parameters=half.parameters) == Fraction(1, 2)
    assert capacity_for(model, plan, inputs, parameters=half.parameters - 1) == Fraction(1, 4)
    assert capacity_for(model, plan, inputs, bytes=half.bytes) == Fraction(1, 2)
    assert capacity_for(model, plan, inputs, macs=half.macs) == Fraction(1, 2)
    assert capacity_for(model, plan, inputs, macs=half.macs, parameters=half.parameters - 1) == Fraction(1, 4)
    room = half.memory(batch=8, moments=2)
    assert capacity_for(model, plan, inputs, memory=room, batch=8, moments=2) == Fraction(1, 2)
    assert capacity_for(model, plan, inputs, memory=room, batch=9, moments=2) == Fraction(1, 4)
    assert capacity_for(model, plan, inputs, parameters=half.parameters, choices=(0.25, 1.0)) == 0.25


def test_no_capacity_fits():
    model, plan, inputs = mlp()
    with pytest.raises(
        CapacityError, match=r"no capacity fits: the smallest, 1/16, needs 15 parameters.* budget is 10"
    ):
        capacity_for(model, plan, inputs, macs=1e9, parameters=10)
    with pytest.raises(CapacityError, match="no capacity fits"):
        capacity_for(model, plan, inputs, macs=float("nan"))


def test_a_budget_must_be_stated():
    model, plan, inputs = mlp()
    with pytest.raises(OptionError, match="at least one budget"):
        capacity_for(model, plan, inputs)
    with pytest.raises(OptionError, match="choices"):
        capacity_for(model, plan, inputs, macs=1, choices=())
    with pytest.raises(CapacityError, match="above 0 and at most 1"):
        cost(model, plan, inputs, [1.5])
