"""The Strategy inside someone's own Flower app: every method, the embedded engine's bits, and hard to lead astray."""

from __future__ import annotations

import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedwidth[flower]'")

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping
from in_process import InProcessGrid
from test_flower import CLIENTS, grid_of, recipe
from torch import nn
from torch.nn import functional

import fedwidth
from fedwidth.config.read import read_settings
from fedwidth.data import from_tensors
from fedwidth.deployment.run_config import RunConfig
from fedwidth.deployment.server import serve
from fedwidth.errors import FedwidthError, OptionError
from fedwidth.experiment import Experiment
from fedwidth.flower import Strategy, fitted, introduce, local_loss
from fedwidth.flower.strategy.orders import KEY, Order
from fedwidth.methods import methods
from fedwidth.settings import ServerSettings
from fedwidth.training.batches import batches, order_generator
from small_runs import same

EXAMPLE = torch.zeros(2, 6)
NEEDS_MEMORY = {"scaffold", "dsfl", "fedgkt"}


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def samples(client: int):
    generator = torch.Generator().manual_seed(client)
    x = torch.randn(24, 6, generator=generator)
    return x, (x[:, :3].argmax(1) + client) % 3 if client < 0 else x[:, :3].argmax(1)


def stranger(*, mods=(), own_loss=True, model=net):
    """The ClientApp of someone who trains as everybody does."""
    app = introduce(ClientApp())

    @app.train(mods=list(mods))
    def train(msg, context):
        small = fitted(model(), msg, EXAMPLE, rate=0.1)
        x, y = samples(context.node_config["partition-id"])
        optimiser = torch.optim.SGD(small.parameters(), lr=0.1)
        small.train()
        for _ in range(3):
            optimiser.zero_grad()
            loss = local_loss(small, x, y) if own_loss else functional.cross_entropy(small(x), y)
            loss.backward()
            optimiser.step()
        metrics = MetricRecord({"loss": loss.item(), "num-examples": len(x)})
        return Message(RecordDict({"arrays": ArrayRecord(small.state_dict()), "metrics": metrics}), reply_to=msg)

    @app.evaluate()
    def evaluate(msg, context):
        small = fitted(model(), msg, EXAMPLE).eval()
        x, y = samples(context.node_config["partition-id"])
        with torch.no_grad():
            accuracy = float((small(x).argmax(1) == y).float().mean())
        width = next(small.parameters()).shape[0]
        metrics = MetricRecord({"accuracy": accuracy, "units": width, "num-examples": len(x)})
        return Message(RecordDict({"metrics": metrics}), reply_to=msg)

    return app


def grid_for(app, capacities=("1", "1/2", "1/4", "1/4")):
    nodes = {900 + c: {"partition-id": c, "capacity": text} for c, text in enumerate(capacities)}
    return InProcessGrid(app, nodes, {})


def started(strategy, grid, rounds=3, model=net):
    return strategy.start(grid, ArrayRecord(model().state_dict()), num_rounds=rounds, timeout=5)


@pytest.mark.parametrize("name", sorted(set(methods()) - NEEDS_MEMORY - {"cocofl"}))
def test_every_method_that_needs_no_memory_of_clients_trains(name):
    x, y = samples(50)
    public = from_tensors(x, y, x, y) if methods()[name].public else None
    strategy = Strategy(net(), EXAMPLE, name, public=public, fraction_evaluate=1.0)
    result = started(strategy, grid_for(stranger()))
    assert result.arrays is not None
    assert set(result.arrays) == set(net().state_dict())
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    assert not any(strategy.absent.values())
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3]
    assert result.train_metrics_clientapp[3]["loss"] < result.train_metrics_clientapp[1]["loss"] + 0.1


@pytest.mark.parametrize("name", sorted(NEEDS_MEMORY))
def test_methods_whose_clients_remember_are_refused_by_name(name):
    with pytest.raises(OptionError, match=f"{methods()[name].title} needs clients that remember"):
        Strategy(net(), EXAMPLE, name)
    with pytest.raises(OptionError, match="FedDF closes a round with data of the server's own"):
        Strategy(net(), EXAMPLE, "feddf")
    with pytest.raises(OptionError, match="CoCoFL must know what training takes of a device's memory"):
        Strategy(net(), EXAMPLE, "cocofl")


def as_the_embedded_engine(text: str):
    """The recipe's experiment, with what deployments add to its settings; and a grid whose clients train like it."""
    settings = RunConfig().with_defaults(read_settings(text).main)
    experiment = Experiment(settings)
    app = introduce(ClientApp())

    @app.train()
    def train(msg, context):
        # Plain PyTorch, in the order in which the recipe's client goes through its samples.
        client, training = context.node_config["client"], settings.training
        order = Order.read(msg.content["config"][KEY])
        small = fitted(experiment.model, msg, experiment.data.example(), labels=experiment.partition.labels[client])
        optimiser = torch.optim.SGD(
            small.parameters(), lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay
        )
        own = experiment.partition[client]
        small.train()
        for places in batches(torch.arange(len(own)), training, order_generator(settings.seed, order.round, client)):
            inputs, targets = experiment.data.batch(experiment.data.train, own[places], train=False)
            optimiser.zero_grad()
            local_loss(small, inputs, targets).backward()
            nn.utils.clip_grad_norm_(small.parameters(), training.clip)
            optimiser.step()
        labels = experiment.partition.labels[client].tolist()
        metrics = MetricRecord({"num-examples": len(own), "labels": labels})
        return Message(RecordDict({"arrays": ArrayRecord(small.state_dict()), "metrics": metrics}), reply_to=msg)

    nodes = {
        500 + client: {"client": client, "capacity": str(experiment.cohorts.capacity_of(client, 0))}
        for client in range(CLIENTS)
    }
    return experiment, InProcessGrid(app, nodes, {})


@pytest.mark.parametrize("name", ["fedrolex", "heterofl", "fedbrb", "fedprox"])
def test_strategy_deployment_and_embedded_engine_end_in_one_state(name, tmp_path):
    text = recipe(f'method.name = "{name}"\n')
    experiment, grid = as_the_embedded_engine(text)
    embedded = experiment.run().server.state
    deployed = serve(grid_of(text), text, RunConfig(out=str(tmp_path)), log=lambda _: None).server.state
    assert same(dict(embedded), dict(deployed))
    server = {key: getattr(experiment.settings.server, key) for key in ServerSettings.__dataclass_fields__}
    strategy = Strategy(
        experiment.model,
        experiment.data.example(),
        name,
        server=server,
        seed=experiment.settings.seed,
        fraction_evaluate=0.0,
    )
    first = ArrayRecord({k: Array(v.numpy()) for k, v in experiment.first_server().state.items()})
    result = strategy.start(grid, first, num_rounds=experiment.settings.rounds, timeout=5)
    found = result.arrays.to_torch_state_dict()
    worst = max(float((found[k] - embedded[k]).abs().max()) for k in embedded)
    print(name, "largest difference to the embedded engine:", worst)
    assert worst <= 1e-6, worst


def spoiled(app, change):
    """An app whose clients' answers to training are changed: change(client, content)."""

    def call(message, context):
        reply = app(message, context)
        if message.metadata.message_type == "train":
            change(context.node_config["partition-id"], reply.content)
        return reply

    return call


def scale(content, name, value):
    arrays = content["arrays"]
    content["arrays"] = ArrayRecord({k: Array(value(a.numpy()) if k == name else a.numpy()) for k, a in arrays.items()})


BAD = {
    "it lacks tensor '0.bias'": lambda c: c["arrays"].pop("0.bias"),
    "it has an unknown tensor 'x\\ny'": lambda c: c["arrays"].update({"x\ny": Array(np.zeros(1, np.float32))}),
    "'0.bias' has shape [1], not [2]": lambda c: scale(c, "0.bias", lambda a: a[:1]),
    "'0.bias' is torch.float64 [2], not torch.float32 [2]": lambda c: scale(
        c, "0.bias", lambda a: a.astype(np.float64)
    ),
    "'0.bias' holds a value that is not finite": lambda c: scale(c, "0.bias", lambda a: a * np.float32(np.nan)),
    "above the bound": lambda c: scale(c, "0.bias", lambda a: a * 0 + np.float32(1e6)),
    "its num-examples is 1e+09, not from 1 to 1,000,000": lambda c: c["metrics"].update({"num-examples": 10**9}),
    "its num-examples is None, not a finite number": lambda c: c["metrics"].pop("num-examples"),
    "it has 0 records of kind MetricRecord, not one": lambda c: c.pop("metrics"),
}


@pytest.mark.parametrize("why", BAD)
def test_a_bad_update_is_dropped_and_named_and_the_round_goes_on(why, caplog):
    """The state is the one without that client, bit for bit."""

    def change(client, content):
        if client == 3:
            BAD[why](content)

    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.WARNING, logger="flwr"):
        strategy = Strategy(net(), EXAMPLE, "heterofl", fraction_evaluate=0.0)
        result = started(strategy, grid_for(spoiled(stranger(), change)), rounds=1)
    assert why in strategy.absent[1][3]
    assert list(strategy.absent[1]) == [3]
    assert sum("client 3 is left out" in message and why in message for message in caplog.messages) == 1
    without = Strategy(net(), EXAMPLE, "heterofl", fraction_evaluate=0.0)
    three = started(without, grid_for(stranger(), ("1", "1/2", "1/4")), rounds=1)
    found, expected = result.arrays.to_torch_state_dict(), three.arrays.to_torch_state_dict()
    assert all(torch.allclose(found[name], expected[name], atol=1e-6) for name in expected)


def test_a_round_in_which_nothing_counts_keeps_the_state():
    def change(client, content):
        scale(content, "0.bias", lambda a: a * np.float32(np.nan))

    strategy = Strategy(net(), EXAMPLE, fraction_evaluate=0.0)
    result = started(strategy, grid_for(spoiled(stranger(), change)), rounds=2)
    assert result.arrays is None or not len(result.arrays)
    assert [sorted(clients) for clients in strategy.absent.values()] == [[0, 1, 2, 3]] * 2


def test_a_client_that_fails_is_named():
    app = stranger()

    def call(message, context):
        if message.metadata.message_type == "train" and context.node_config["partition-id"] == 2:
            raise RuntimeError("out of\nmemory")
        return app(message, context)

    strategy = Strategy(net(), EXAMPLE, fraction_evaluate=0.0)
    started(strategy, grid_for(call), rounds=1)
    assert strategy.absent[1] == {2: "it failed: RuntimeError: out of\\nmemory"}


def test_one_average_by_hand():
    """Two nodes, one of them half as wide, HeteroFL, weights 3 and 1: Eq. 10 element by element."""
    app = introduce(ClientApp())

    @app.train()
    def train(msg, context):
        small = fitted(two_layers(), msg, torch.zeros(1, 1))
        with torch.no_grad():
            for parameter in small.parameters():
                parameter.fill_(1.0 if context.node_config["partition-id"] else 5.0)
        metrics = MetricRecord({"num-examples": 1 if context.node_config["partition-id"] else 3})
        return Message(RecordDict({"arrays": ArrayRecord(small.state_dict()), "metrics": metrics}), reply_to=msg)

    model = two_layers()
    strategy = Strategy(model, torch.zeros(1, 1), "heterofl", fraction_evaluate=0.0)
    grid = InProcessGrid(app, {7: {"partition-id": 0}, 8: {"partition-id": 1, "capacity": "1/2"}}, {})
    found = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=1).arrays.to_torch_state_dict()
    assert found["0.weight"].flatten().tolist() == [4.0, 5.0]  # (3 * 5 + 1 * 1) / 4, and 5 alone
    assert found["1.weight"].flatten().tolist() == [4.0, 5.0]


def two_layers():
    return nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False))


def test_the_proximal_term_reaches_the_apps_own_training():
    """FedProx adds mu (w - start) to the gradient of the app's own loss, whoever's loop it is."""
    model = two_layers()
    plain, prox = (fitted(model, order_for(model, name), torch.zeros(1, 1)) for name in ("heterofl", "fedprox"))
    for module in (plain, prox):
        with torch.no_grad():
            module[0].weight += 2.0
        module(torch.ones(1, 1)).sum().backward()
    mu = fedwidth.method("fedprox").values["mu"]
    assert torch.allclose(prox[0].weight.grad, plain[0].weight.grad + mu * 2.0)
    assert torch.equal(prox[1].weight.grad, plain[1].weight.grad)


def order_for(model, name, **options):
    order = Order(name, 1.0, 0, 0, 0, 1, 1, options=options, counts={})
    arrays = ArrayRecord(model.state_dict())
    from flwr.supercore.task_identity import TaskIdentity  # set by the processes that Flower starts

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    return Message(RecordDict({"arrays": arrays, "config": ConfigRecord({KEY: order.text()})}), 1, "train")


def test_a_loss_of_the_methods_own_cannot_be_forgotten():
    strategy = Strategy(net(), EXAMPLE, "fjord", fraction_evaluate=0.0)
    started(strategy, grid_for(stranger(own_loss=False)), rounds=1)
    assert all("FjORD trains with a loss of its own: call local_loss" in why for why in strategy.absent[1].values())


def test_a_message_cannot_name_code_for_a_device_to_import():
    model = two_layers()
    with pytest.raises(OptionError, match="'os:system' is no method of the package"):
        fitted(model, order_for(model, "os:system"), torch.zeros(1, 1))
    with pytest.raises(FedwidthError, match="holds no order"):
        fitted(model, Message(RecordDict({"config": ConfigRecord({KEY: "no"})}), 1, "train"), torch.zeros(1, 1))


def test_each_node_is_evaluated_at_its_own_width():
    strategy = Strategy(net(), EXAMPLE, fraction_evaluate=1.0)
    result = started(strategy, grid_for(stranger()), rounds=2)
    metrics = result.evaluate_metrics_clientapp[2]
    assert (metrics["units-at-1"], metrics["units-at-0.5"], metrics["units-at-0.25"]) == (8, 4, 2)
    assert metrics["units"] == (8 + 4 + 2 + 2) / 4
    assert 0 <= metrics["accuracy-at-0.25"] <= 1


@pytest.mark.parametrize("optimiser", ["fedavgm", "fedadam", "fedyogi"])
def test_server_optimisers_take_the_step_that_the_function_takes(optimiser):
    plain = started(Strategy(net(), EXAMPLE, "heterofl", fraction_evaluate=0.0), grid_for(stranger()), rounds=1)
    settings = {"optimiser": optimiser, "lr": 0.1}
    strategy = Strategy(net(), EXAMPLE, "heterofl", server=settings, fraction_evaluate=0.0)
    found = started(strategy, grid_for(stranger()), rounds=1).arrays.to_torch_state_dict()
    expected, _ = fedwidth.server_step(
        dict(net().state_dict()), plain.arrays.to_torch_state_dict(), ServerSettings(**settings)
    )
    assert all(torch.equal(found[name], expected[name]) for name in found)
    with pytest.raises(OptionError, match="server.optimiser must be"):
        Strategy(net(), EXAMPLE, server={"optimiser": "adamw"})


def test_flowers_own_clipping_on_clients_works_at_every_width():
    """The wrapper tells clients the norm, the mod clips what each of them sends, whatever its width."""
    norms = {}

    def watch(message, context):
        reply = app(message, context)
        if message.metadata.message_type == "train":
            before, after = (m.content["arrays"].to_torch_state_dict() for m in (message, reply))
            change = torch.cat([(after[name] - before[name]).flatten() for name in after])
            norms[context.node_config["partition-id"]] = change.norm().item()
        return reply

    app = stranger(mods=[fixedclipping_mod])
    inner = Strategy(net(), EXAMPLE, "heterofl", fraction_evaluate=0.0)
    outer = DifferentialPrivacyClientSideFixedClipping(
        inner, noise_multiplier=0.0, clipping_norm=0.01, num_sampled_clients=4
    )
    result = outer.start(grid_for(watch), ArrayRecord(net().state_dict()), num_rounds=1, timeout=5)
    assert sorted(norms) == [0, 1, 2, 3]
    assert all(norm <= 0.01 + 1e-6 for norm in norms.values())
    assert not inner.absent[1]
    assert result.arrays is not None


def test_nodes_that_say_nothing_sensible_are_named():
    app = stranger()

    def call(message, context):
        if message.metadata.message_type == f"query.{KEY}" and context.node_config["partition-id"] == 1:
            raise RuntimeError("no route")
        return app(message, context)

    nodes = {
        1: {"partition-id": 0},
        2: {"partition-id": 1},
        3: {"partition-id": 0},
        4: {"partition-id": 2, "capacity": "2"},
    }
    strategy = Strategy(net(), EXAMPLE, fraction_evaluate=0.0)
    started(strategy, InProcessGrid(call, nodes, {}), rounds=1)
    assert strategy.nodes.silent[2] == "it failed: RuntimeError: no route"
    assert strategy.nodes.silent[3] == "it says it is client 0, which node 1 is already"
    assert "2" in strategy.nodes.silent[4]
    with pytest.raises(FedwidthError, match=r"no node has said what it can afford.*needs introduce\(app\)"):
        started(Strategy(net(), EXAMPLE), InProcessGrid(ClientApp(), {1: {}, 2: {}}, {}), rounds=1)


def test_capacities_are_dealt_by_the_run_config_where_nodes_have_none():
    app = stranger()
    grid = InProcessGrid(
        app, {9: {"partition-id": 0}, 5: {"partition-id": 1}, 7: {"partition-id": 2}}, {"capacities": "1,1/4"}
    )
    strategy = Strategy(net(), EXAMPLE, fraction_evaluate=0.0)
    started(strategy, grid, rounds=1)
    assert {n.client: n.capacity for n in strategy.nodes.known.values()} == {0: 1.0, 1: 0.25, 2: 1.0}
