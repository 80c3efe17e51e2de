"""Several architectures in one run: clients of a capacity hold another network than a width of the run's model."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.core.architectures import Held, held_at
from fedwidth.core.part import WidthPart
from fedwidth.engines import make_engine
from fedwidth.errors import OptionError, StateError
from fedwidth.experiment import Experiment
from fedwidth.methods import methods, under
from fedwidth.methods.shared.width_models import averages, teachers
from fedwidth.training.round import run_round
from small_runs import contents, same, small, whole_and_resumed

SEVERAL = [name for name, method in methods().items() if method.several]
OTHERS = [name for name in methods() if name not in SEVERAL]
TAUGHT = {"feddf": "{steps=3, batch_size=16}", "fedet": "{steps=3, batch_size=16}", "fedgkt": "{epochs=2}"}
TAUGHT["dsfl"] = "{samples=40, epochs=1}"
DEEP = 'models=[{name="mlp", label="deep", options={hidden=[8, 4]}, capacities=["1/2"]}]'
"""A network with one layer more than the run's model, which has a hidden layer of 8, and as long a first one."""


def settings_of(name, *changes):
    return small(f"method.name={name}", f"method.options={TAUGHT.get(name, '{}')}", DEEP, "data.public=0.2", *changes)


def test_which_methods_take_them():
    assert SEVERAL == ["dsfl", "feddf", "fedet", "fedgkt"]


@pytest.mark.parametrize("name", OTHERS)
def test_methods_whose_clients_hold_parts_of_one_model_refuse_them_with_the_reason(name):
    with pytest.raises(
        OptionError, match=r"takes no \[\[models\]\]: every client holds .*, so there is one architectur"
    ):
        Experiment(small(f"method.name={name}", DEEP))


def test_which_model_a_client_holds():
    """Capacities that are named hold the network whole, others a width of the run's model as ever."""
    run = Experiment(settings_of("feddf"))
    named = run.method.architectures
    assert held_at(named, 0.25) == Held(0.25)
    assert held_at(named, 1.0).is_global
    held = held_at(named, 0.5)
    assert (held.label, held.width, held.is_global) == ("deep", 1.0, False)
    assert [shape for name, shape in held.index(run.plan).shapes.items() if "weight" in name] == [
        (8, 64),
        (4, 8),
        (10, 4),
    ]
    assert len(under(run.first_server().memory, "architecture.deep")) == 6
    assert not under(run.first_server().memory, "width.0.5")


@pytest.mark.parametrize("name", SEVERAL)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(name, tmp_path):
    whole_and_resumed(settings_of(name, "rounds=4"), tmp_path)
    assert contents(tmp_path / "whole") == contents(tmp_path / "parts")


@pytest.mark.parametrize("name", SEVERAL)
def test_engines_agree(name):
    settings = ["rounds=2", "devices.per_round=6"]
    one = Experiment(settings_of(name, *settings)).run().server
    workers = Experiment(settings_of(name, *settings, "engine=processes", "workers=2")).run().server
    assert same(dict(one.state), dict(workers.state))
    assert same(dict(one.memory), dict(workers.memory))
    if name in ("feddf", "fedet"):
        stacked = Experiment(settings_of(name, *settings, "engine=vectorised")).run().server
        for known, found in ((one.state, stacked.state), (one.memory, stacked.memory)):
            assert all(torch.allclose(known[tensor], found[tensor], atol=1e-4) for tensor in known)


@pytest.mark.parametrize("name", SEVERAL)
def test_what_a_client_of_an_architecture_costs_is_what_it_holds(name):
    """64 x 8 + 8, 8 x 4 + 4, 4 x 10 + 10; Fed-ET's ends in the run's last layer, of 8 features, behind a projection."""
    run = Experiment(settings_of(name))
    parameters = {"fedet": 64 * 8 + 8 + 8 * 4 + 4 + 4 * 8 + 8 + 8 * 10 + 10}.get(
        name, 64 * 8 + 8 + 8 * 4 + 4 + 4 * 10 + 10
    )
    server = run.first_server()
    (task,) = run.rounds.assign(server, [(0, 0.5)])
    cost = run.costs.of(task)
    assert cost.parameters == parameters == sum(t.numel() for t in task.part.cut(server.state, run.plan).values())
    assert cost.bytes == 4 * parameters
    biases = 8 + 4 + 10 + (8 if name == "fedet" else 0)
    assert cost.macs == parameters - biases
    assert cost.share == pytest.approx(parameters / (64 * 8 + 8 + 8 * 10 + 10))
    down, up = run.costs.traffic([task], {0: (3, 77)})
    assert (down, up) == (4 * parameters, 77 if name in ("dsfl", "fedgkt") else 4 * parameters)


def test_feddf_averages_the_clients_of_each_architecture_and_hears_all_of_them():
    run, kept = Experiment(settings_of("feddf", "devices.per_round=6")), []

    def close(closing):
        kept.append(closing)
        return dict(closing.state)

    rounds = replace(run.rounds, method=replace(run.method, close=close, advance=None))
    cohort = [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.25), (4, 1.0), (5, 1.0)]
    run_round(rounds, run.first_server(), cohort, make_engine(run.trainer))
    found = averages(kept[0])[held_at(run.method.architectures, 0.5)]
    own = [one.mean for one in kept[0].sums[:3]]
    first = next(name for name, tensor in found.items() if tensor.shape == (8, 64))
    torch.testing.assert_close(found[first], torch.stack([one[first] for one in own]).mean(0))
    sizes = [sum(parameter.numel() for parameter in module.parameters()) for module in teachers(kept[0])]
    assert sizes == [606, 606, 606, 160, 610, 610]


@pytest.mark.parametrize("name", ["feddf", "fedet"])
def test_untrained_clients_change_nothing_where_nobody_is_taught(name):
    untaught = ["training.lr=0.0", "devices.per_round=6", "method.options={steps=0}"]
    run = Experiment(settings_of(name, *untaught))
    found = run.run().server
    assert same(run.first_state, found.state)
    assert same(dict(run.first_server().memory), dict(found.memory))


def test_fed_et_gives_every_architecture_the_servers_last_layer():
    run = Experiment(settings_of("fedet", "rounds=2"))
    server = run.run().server
    last = next(name for name in server.state if server.state[name].shape == (10, 8))
    for model in ("architecture.deep", "width.0.25", "width.1"):
        own = under(server.memory, model)
        inner = next(name for name in own if own[name].shape == (10, 8))
        assert torch.equal(own[inner], server.state[last])
    assert any(
        tensor.shape == (8, 4) and "projection" in name
        for name, tensor in under(server.memory, "architecture.deep").items()
    )


def test_an_architecture_with_as_many_features_needs_no_projection():
    wide = 'models=[{name="mlp", label="wide", options={hidden=[4, 8]}, capacities=["1/2"]}]'
    run = Experiment(settings_of("fedet", wide))
    names = list(under(run.first_server().memory, "architecture.wide"))
    assert not [name for name in names if "projection" in name]
    (task,) = run.rounds.assign(run.first_server(), [(0, 0.5)])
    assert isinstance(task.part, WidthPart)
    assert run.costs.of(task).parameters == 64 * 4 + 4 + 4 * 8 + 8 + 8 * 10 + 10


def test_fedgkt_asks_for_architectures_that_begin_alike():
    other = 'models=[{name="mlp", options={hidden=[6, 8]}, capacities=["1/2"]}]'
    with pytest.raises(OptionError, match=r"before which all must be alike: 'mlp' has tensors \[\[6, 64\], \[6\]\]"):
        Experiment(settings_of("fedgkt", other))


class Plain(nn.Module):
    """A network with names of its own."""

    def __init__(self, units):
        super().__init__()
        self.first, self.last = nn.Linear(64, units), nn.Linear(units, 10)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.flatten(1))))


@pytest.mark.parametrize("name", SEVERAL)
def test_networks_may_be_given_in_python_one_object_for_several_capacities(name):
    torch.manual_seed(0)
    settings, network = settings_of(name, "models=[]", "devices.per_round=6", "rounds=2"), Plain(8)
    run = Experiment(settings, models={0.5: network, 0.25: network})
    assert len(set(run.method.architectures.values())) == 1
    found = run.run().server
    kept = {tensor.split(".")[1] for tensor in found.memory if tensor.startswith(("architecture.", "first."))}
    assert "Plain" in kept
    assert not any(tensor.startswith(("width.0.5", "width.0.25", "first.0.5")) for tensor in found.memory)
    with pytest.raises(OptionError, match="give them in one place"):
        Experiment(settings_of(name), models={0.5: network})


@pytest.mark.parametrize("name", SEVERAL)
def test_a_run_gives_its_architecture_back(name, tmp_path):
    run = Experiment(settings_of(name, "rounds=2", "devices.per_round=6", 'evaluation.capacities=["1/2"]'))
    run.run(tmp_path / "run")
    model = fedwidth.load(tmp_path / "run", capacity=0.5)
    assert [tuple(p.shape) for p in model.parameters() if p.dim() == 2][:2] == [(8, 64), (4, 8)]
    assert fedwidth.load(tmp_path / "run")(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_adapters_are_of_one_model():
    with pytest.raises(OptionError, match=r"adapter.rank and \[\[models\]\] do not go together"):
        Experiment(settings_of("feddf", "adapter.rank=2"))


def test_a_checkpoint_of_other_architectures_is_refused(tmp_path):
    Experiment(settings_of("feddf", "rounds=1")).run(tmp_path / "run")
    other = settings_of("feddf", "rounds=1", DEEP.replace("[8, 4]", "[8, 5]"))
    with pytest.raises(StateError, match="models is"):
        Experiment(other).run(tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("models", "why"),
    [
        (
            '[{name="mlp", capacities=["1/3"]}]',
            r"names 0.333333, which no client has; devices.capacities: 1, 0.5, 0.25",
        ),
        ('[{name="mlp", capacities=["1/2", "1/2"]}]', r"names 0.5 twice"),
        (
            '[{name="mlp", capacities=["1/2"]}, {name="mlp", capacities=["1/4"]}]',
            r"two of \[\[models\]\] are called 'mlp'",
        ),
        ('[{name="mlp"}]', r"models.capacities of 'mlp' must name at least one capacity"),
        ('[{capacities=["1/2"]}]', r"every table of \[\[models\]\] needs a name"),
        ('[{name="mlpp", capacities=["1/2"]}]', r"unknown model 'mlpp'"),
        ('[{name="mlp", label="0.5", capacities=["1/2"]}]', r"models.label must be letters"),
        ('[{name="mlp", capacity="1/2"}]', r"unknown key 'models.capacity' \(did you mean 'models.capacities'"),
        ('{name="mlp"}', r"models must be a list of tables"),
        ('[{name="mlp", options={hiden=[3]}, capacities=["1/2"]}]', r"unknown mlp option 'hiden'"),
    ],
)
def test_what_is_wrong_with_models_is_said_in_one_line(models, why):
    with pytest.raises(OptionError, match=why):
        Experiment(settings_of("feddf", f"models={models}"))


class Normed(nn.Module):
    """Batch norm without running statistics, so that clients can be stacked."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(64, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 10)

    def forward(self, x):
        return self.b(torch.relu(self.norm(self.a(x.flatten(1)))))


def test_clients_whose_architecture_alone_has_batch_norm_share_no_short_batches():
    """Samples that fill a stack's batch up would change its statistics."""
    torch.manual_seed(0)
    model, ends = Normed(), []
    for engine in ("serial", "vectorised"):
        changes = ["data.public=0.2", "devices.per_round=6", "rounds=2", "training.batch_size=60", f"engine={engine}"]
        settings = small("method.name=dsfl", f"method.options={TAUGHT['dsfl']}", *changes)
        ends.append(Experiment(settings, models={0.5: model}).run().server)
    torch.testing.assert_close(dict(ends[1].memory), dict(ends[0].memory), rtol=0, atol=2e-5)
