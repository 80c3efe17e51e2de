"""FedLadder: networks of halving widths in one model, each trained as a whole by the devices that can hold it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.core.submodel import state_of
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.methods import Beginning, method
from fedwidth.methods.fedladder import networks, widths_of
from fedwidth.models import build, example_inputs
from fedwidth.run.lockstep import run_in_lockstep
from small_runs import same, small

FIVE = (1.0, 0.5, 0.25, 0.125, 0.0625)
MIXED = ("method.name=fedladder", "devices.capacities=a1-b1-c1-d1", "model.options={hidden=[16, 16]}")


def units(plan, capacity, enrolled, group, **at):
    """The units of a group that a client holds."""
    chosen = replace(method("fedladder"), enrolled=enrolled)
    return chosen.select(plan, capacity=capacity, clients=64, **at).units[group].tolist()


@pytest.fixture(scope="module")
def plan():
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    return fedwidth.trace(model, torch.zeros(1, 3))


def test_by_hand_where_each_network_lies(plan):
    # Turns are counted from 1 and turn 1 is no third one: everybody trains the network of its kind.
    assert [units(plan, c, FIVE, "0") for c in FIVE] == [
        list(range(0, 8)),
        list(range(0, 8)),
        list(range(8, 12)),
        list(range(12, 14)),
        [14],
    ]
    assert units(plan, 0.25, FIVE, "2") == list(range(16, 24))


def test_by_hand_who_trains_a_narrower_network_and_when(plan):
    # Turn = round + place + 1. Of turns 1 to 9, 3 and 6 are one step down, 9 is two; below the last there is nothing.
    first = [units(plan, 0.5, FIVE, "0", round=round)[0] for round in range(9)]
    assert first == [0, 0, 8, 0, 0, 8, 0, 0, 12]
    assert [units(plan, 0.5, FIVE, "0", round=2, client=place)[0] for place in range(4)] == [8, 0, 0, 8]
    assert {units(plan, 1 / 16, FIVE, "0", round=round)[0] for round in range(30)} == {14}
    assert units(plan, 0.125, FIVE, "0", round=26) == [14], "three steps are two more than there are"


def test_only_widths_that_devices_have_get_a_network(plan):
    assert widths_of((1.0, 0.25)) == (0.5, 0.25)
    assert units(plan, 0.25, (1.0, 0.25), "0") == [8, 9, 10, 11]
    assert units(plan, 1.0, (1.0, 0.25), "0", round=2) == [8, 9, 10, 11], "the next narrower network there is"
    assert widths_of((0.7, 0.3, 0.1)) == (0.5, 0.25, 0.0625)


def test_devices_of_one_kind_have_one_network(plan):
    for capacity in (1.0, 0.25, 0.3):
        kept = plan.counts(capacity, "floor")["0"]
        assert {tuple(units(plan, capacity, (capacity,), "0", round=round)) for round in range(9)} == {
            tuple(range(kept))
        }


def test_who_is_narrower_than_all_devices_gets_a_part_of_the_last_network(plan):
    assert units(plan, 1 / 16, (0.5, 0.25), "2") == [16, 17]


def test_a_layer_with_too_few_units_is_shared():
    plan = fedwidth.trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.zeros(1, 3))
    found = networks(plan, widths_of(FIVE), "floor")
    assert [index.units["0"].tolist() for index in found] == [[0, 1], [2], [3], [3]]


@pytest.mark.parametrize("descend", [1, -1, 2.0, True, "3"])
def test_turns_that_make_no_sense_are_refused(descend):
    with pytest.raises(OptionError, match="descend must be 0 or a whole number of at least 2"):
        method("fedladder", descend=descend)


def test_the_model_is_the_sum_of_its_networks_at_the_start_and_at_the_end():
    # The output's bias is in every network, and in the whole once.
    run = Experiment(small(*MIXED, "rounds=12"))
    result = run.run()
    x = torch.randn(7, *run.data.shape)
    there = networks(run.plan, (0.5, 0.25, 0.125), "floor")
    for state in (run.first_state, result.server.state):
        model = result.model.eval()
        model.load_state_dict(state, strict=False)
        bias = [t for n, t in model.named_parameters() if n.endswith("bias")][-1]
        with torch.no_grad():
            outputs = [fedwidth.narrow(model, run.plan, index).eval()(x) for index in there]
            torch.testing.assert_close(model(x), sum(outputs) - 2 * bias, rtol=0, atol=1e-5)


def test_every_weight_of_a_network_is_trained_and_nothing_between_them():
    run = Experiment(small(*MIXED, "rounds=30", "training.weight_decay=0"))
    state = run.run().server.state
    name = next(n for n, t in state.items() if t.shape == (16, 16))
    network = torch.tensor([0] * 8 + [1] * 4 + [2] * 2 + [-1, -1])
    inside = (network[:, None] == network) & (network[:, None] >= 0)
    assert not state[name][~inside].any()
    assert (state[name] != run.first_state[name])[inside].float().mean() > 0.9


def test_convolutions_and_norms_end_up_in_one_network_each():
    (example,) = example_inputs("cnn")
    model = build("cnn", widths=[8, 16]).eval()
    plan = fedwidth.trace(model, example)
    chosen = method("fedladder")
    model.load_state_dict(
        chosen.first_state(Beginning(state_of(model), plan, (0.5, 0.25), 0, chosen.values)), strict=False
    )
    x = torch.randn(5, *example.shape[1:])
    bias = [t for n, t in model.named_parameters() if n.endswith("bias")][-1]
    with torch.no_grad():
        parts = [fedwidth.narrow(model, plan, index).eval()(x) for index in networks(plan, (0.5, 0.25), "floor")]
        # Norms take the statistics of the batch, which are each channel's own.
        torch.testing.assert_close(model(x), sum(parts) - bias, rtol=0, atol=1e-5)


def test_full_width_for_all_is_fedavg():
    ladder, plain = (
        Experiment(small(f"method.name={name}", "devices.capacities=a1", "training.scaler=false")).run()
        for name in ("fedladder", "fedavg")
    )
    assert same(ladder.server.state, plain.server.state)


def test_one_network_is_the_model_of_that_width():
    # Everybody at 1/4: what is trained is a server's model of 1/4, from the same weights.
    wide = Experiment(small("method.name=fedladder", "devices.capacities=c1", "model.options={hidden=[16, 16]}"))
    there = networks(wide.plan, (0.25,), "floor")[0]
    narrow = fedwidth.narrow(wide.model, wide.plan, there)
    settings = small("method.name=fedavg", "devices.capacities=a1", "training.scaler=false")
    alone = Experiment(settings, model=narrow, data=wide.data)
    assert same(there.cut(wide.run().server.state, wide.plan), alone.run().server.state)


def test_devices_of_two_kinds_that_train_one_network_also_do_so_in_a_pack():
    # Full and half width both train the network of 1/2: one part, two sizes of stacks.
    alone = Experiment(small(*MIXED, "engine=vectorised", "rounds=4"))
    packed = [
        Experiment(small(*MIXED, "engine=vectorised", "rounds=4", f"seed={seed}"), data=alone.data) for seed in (1, 2)
    ]
    expected = alone.run().server.state
    found = run_in_lockstep(packed)[0].server.state
    for name, tensor in expected.items():
        assert torch.allclose(tensor, found[name], rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("rounds", [5, 6, 9])
def test_what_a_device_runs_is_the_network_of_its_kind_whatever_was_trained_last(tmp_path, rounds):
    run = Experiment(small(*MIXED, f"rounds={rounds}", "evaluation.capacities=[1, 0.5, 0.25, 0.125]"))
    result = run.run(tmp_path / "run")
    line, there = result.metrics[-1], networks(run.plan, (0.5, 0.25, 0.125), "floor")
    assert line["capacity_accuracy"]["1"] == line["global_accuracy"]
    assert "capacity_accuracy_mean" not in line, "all devices of a kind run the same"
    for capacity, index in zip((0.5, 0.25, 0.125), there, strict=True):
        taken = fedwidth.load(tmp_path / "run", capacity=capacity)
        cut = index.cut(result.server.state, run.plan)
        assert same({name: cut[name] for name in taken.state_dict()}, taken.state_dict())


def test_a_kind_that_no_client_has_gets_no_network():
    # The mix has four kinds, and six clients only two of them.
    run = Experiment(small("method.name=fedladder", "devices.capacities=1:1 1/2:1 1/4:30 1/8:30", "data.clients=6"))
    assert run.method.enrolled == (0.25, 0.125)
    changed = {n: bool((t != run.first_state[n]).any()) for n, t in run.run().server.state.items() if t.dim() > 1}
    assert all(changed.values())
