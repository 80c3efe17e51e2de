"""Laws of methods whose clients hold no slices, or whose server teaches: FedAvg as a special case, stops, costs."""

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.core.factored.decomposition import CHANNELS, SEPARABLE, hidden_layers, matrix_shape
from fedwidth.core.factored.factors import Factors
from fedwidth.experiment import Experiment
from fedwidth.methods import Beginning, methods
from small_runs import same, small, whole_and_resumed

NAMES = ["fedhm", "prism", "flanc", "feddf", "fedbe"]
LAYERS = "model.options={hidden=[16,16]}"


def settings_of(name, *changes):
    taught = ["method.options={steps=2, batch_size=8}"] if "steps" in methods()[name].options else []
    return small(f"method.name={name}", LAYERS, *taught, *changes)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(name, tmp_path):
    settings = settings_of(name, "rounds=4")
    whole, resumed = whole_and_resumed(settings, tmp_path)
    assert same(dict(whole.server.state), dict(resumed.server.state))
    assert same(dict(whole.server.memory), dict(resumed.server.memory))


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_teaching_server_gives_the_same_bits_however_many_threads_are_at_hand(engine):
    """Its run trains in one thread; with several, narrow strided convolutions would compute in another order."""
    model = ["model.name=preresnet18", "model.options={widths=[8, 8, 8, 8]}"]
    taught = ["method.options={steps=2, batch_size=8}", "rounds=1", "data.public=0.1"]
    settings = small("method.name=feddf", *model, *taught, f"engine={engine}", "workers=2")
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(Experiment(settings).run().server.state)
    finally:
        torch.set_num_threads(before)
    assert same(*found)


def test_fedhm_at_factor_1_is_fedavg():
    plain, found = (
        Experiment(small(f"method.name={name}", LAYERS, "devices.capacities=a1")).run() for name in ("fedavg", "fedhm")
    )
    assert same(plain.server.state, found.server.state)


@pytest.mark.parametrize("name", ["flanc", "feddf", "fedbe"])
def test_untrained_clients_change_nothing_where_weights_are_averaged(name):
    """Of FedHM what is beyond a client's rank is not sent, and PriSM's factors are equal up to rounding."""
    untaught = ["method.options={steps=0}"] if "steps" in methods()[name].options else []
    run = Experiment(small(f"method.name={name}", LAYERS, "training.lr=0.0", "devices.per_round=6", *untaught))
    found = run.run().server
    assert same(run.first_state, found.state)
    assert same(dict(run.first_server().memory), dict(found.memory))


class Odd(nn.Module):
    """Inner convolutions with strides, dilation and groups."""

    def __init__(self):
        super().__init__()
        strided = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        dilated, grouped = nn.Conv2d(8, 8, 3, dilation=2, padding=2), nn.Conv2d(8, 8, 3, groups=4, padding=1)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), strided, dilated, nn.ReLU(), grouped, nn.Conv2d(8, 8, 1)
        )
        self.classifier = nn.Linear(8, 5)

    def forward(self, x):
        return self.classifier(self.layers(x).mean((2, 3)))


@pytest.mark.parametrize("reading", [SEPARABLE, CHANNELS])
def test_at_full_rank_strided_dilated_and_grouped_convolutions_are_what_they_were(reading):
    """Separable factors are FedHM's, channels PriSM's."""
    torch.manual_seed(0)
    model, inputs = Odd().double(), torch.randn(2, 3, 12, 12, dtype=torch.float64)
    plan = fedwidth.trace(model, inputs)
    assert len(hidden_layers(plan)) == 4
    every = {name: tuple(range(min(matrix_shape(plan, name, reading)[1:]))) for name in hidden_layers(plan)}
    part = Factors(plan, reading, every)
    module = part.module(model, plan)
    module.load_state_dict(part.cut(fedwidth.state_of(model), plan))
    torch.testing.assert_close(module(inputs), model(inputs))


def test_prism_at_full_capacity_is_the_model():
    torch.manual_seed(0)
    model, inputs = Odd().double(), torch.randn(2, 3, 12, 12, dtype=torch.float64)
    plan, state = fedwidth.trace(model, inputs), fedwidth.state_of(model)
    part = fedwidth.method("prism").select(plan, capacity=1, state=state)
    module = part.module(model, plan)
    module.load_state_dict(part.cut(state, plan))
    torch.testing.assert_close(module(inputs), model(inputs))


@pytest.mark.parametrize("name", NAMES)
def test_what_a_client_costs_is_what_it_holds_and_is_sent(name):
    """Parameters, bytes sent, multiply-adds and memory, of a device of capacity 1/4."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    inputs, state = torch.randn(3, 4), fedwidth.state_of(model)
    plan, method = fedwidth.trace(model, inputs), fedwidth.method(name)
    beginning = Beginning(state, plan, (1.0, 0.25), options=method.values)
    part = method.select(plan, capacity=0.25, state=state, memory=method.first_memory(beginning))
    cost = part.cost(model, plan, inputs, capacity=0.25)
    ends = 4 * 16 + 16 + 16 + 16 * 2 + 2  # whole first and last layer, and the biases
    small = 4 * 4 + 4 + 4 + 4 * 2 + 2  # the same at width 1/4
    expected = {
        "fedhm": ends + 4 * (16 + 16),  # rank 16 / 4
        "prism": ends + 4 * (16 + 16),  # 4 of 16 components
        "flanc": small + 4 * 2 + 4 * 2 * 4,  # a basis of 4 x 2, and 4 x (2 groups of 4) coefficients
        "feddf": small + 4 * 4,
        "fedbe": ends + 16 * 16,
    }[name]
    assert cost.parameters == expected
    assert cost.bytes == 4 * expected == sum(4 * tensor.numel() for tensor in part.cut(state, plan).values())
    biases = {"flanc": 10, "feddf": 10}.get(name, 34)
    composed = 16 + 4 * 2 * 4 * 2 // 3  # the kernel is composed once for a batch of three
    macs = {"flanc": small - biases + composed, "feddf": small - biases + 16}.get(name, expected - biases)
    assert cost.macs == macs
    assert cost.activation_bytes > 0
