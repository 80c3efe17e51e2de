"""CoCoFL: which runs of layers fit a budget, and what a round makes of them, by hand; FedAvg as a special case."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.core.index import Index
from fedwidth.core.narrow import skeleton
from fedwidth.devices.memory import Memory
from fedwidth.experiment import Experiment
from fedwidth.methods import Beginning, Closing, Task
from fedwidth.methods.cocofl import longest_runs
from fedwidth.methods.shared.layers import Layers, layers_of
from fedwidth.objectives.played import step_memory
from small_runs import same, small, whole_and_resumed

COCOFL = fedwidth.method("cocofl")
CAPACITIES = (1.0, 0.5, 0.25)


def net():
    """Layers of 4 x 8 + 8 = 40, 8 x 8 + 8 = 72 and 8 x 2 + 2 = 18 weights: 520 bytes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


PLAN = fedwidth.trace(net(), torch.randn(2, 4))
FIRST, MIDDLE, LAST = (("0.weight", "0.bias"), ("2.weight", "2.bias"), ("4.weight", "4.bias"))
BUDGET = 1100.0
"""Bytes that the sub-model of half width takes in `by_hand`."""


def by_hand(module):
    """Weights as received and as trained, a moment and a gradient for each that is trained, and 100 bytes for each
    layer whose activations are kept: from the first trained one to the last."""
    if len(module[0].bias) < 8:
        module(torch.zeros(1, 4)).sum().backward()
        return Memory(BUDGET if len(module[0].bias) == 4 else 300.0, 0.0, 0.0, 0.0)
    module(torch.zeros(1, 4)).sum().backward()
    trained = [p.requires_grad for p in (module[0].weight, module[2].weight, module[4].weight)]
    own = sum(4 * p.numel() for p in module.parameters() if p.requires_grad)
    return Memory(520.0, 520.0, own, own + 100.0 * (3 - trained.index(True)))


def begun(capacities=CAPACITIES, takes=by_hand):
    model = net()
    return Beginning(
        fedwidth.state_of(model), PLAN, capacities, options=COCOFL.values, model=model, example=None, takes=takes
    )


def test_a_layer_is_a_weight_and_what_follows_it():
    assert layers_of(PLAN) == [FIRST, MIDDLE, LAST]
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    first, last = layers_of(fedwidth.trace(model, torch.zeros(2, 1, 8, 8)))
    assert {"0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var"} <= set(first)
    assert last == ("4.weight", "4.bias")


def test_the_runs_that_fit_by_hand():
    """A run takes 2 x 520 - frozen + 2 x trained + 100 for each layer from its first on = 520 + 3 x trained + 100 n:

    first 160 bytes    520 + 480 + 300  = 1300        middle 288   520 + 864 + 200 = 1584
    last   72 bytes    520 + 216 + 100  =  836        the last two 360   520 + 1080 + 200 = 1800
    the first two 448  520 + 1344 + 300 = 2164        all three 520      520 + 1560 + 300 = 2380
    """
    memory = COCOFL.first_memory(begun())
    assert memory["runs.0.5"].tolist() == [[2, 3]]
    assert memory["bytes.0.5"].tolist() == [BUDGET, 836.0]

    def runs(budget):
        def takes(module):
            found = by_hand(module)
            return Memory(budget, 0.0, 0.0, 0.0) if len(module[0].bias) == 4 else found

        return COCOFL.first_memory(begun((1.0, 0.5), takes))["runs.0.5"].tolist()

    assert runs(835) == []
    assert runs(1299) == [[2, 3]]
    assert runs(1300) == [[0, 1], [2, 3]]
    assert runs(1584) == [[0, 1], [1, 2], [2, 3]]
    assert runs(1800) == [[0, 1], [1, 3]]
    assert runs(2164) == [[0, 2], [1, 3]]
    assert runs(2380) == [[0, 3]]


def test_longest_runs_of_nothing():
    assert longest_runs(3, lambda first, stop: False) == []


def test_devices_that_can_train_no_layer_are_left_out_with_what_they_lack():
    memory = COCOFL.first_memory(begun())
    left = COCOFL.left_out(memory, CAPACITIES)
    assert left == {0.25: "training the last layer alone takes 836 bytes, and capacity 0.25 has 300"}
    with pytest.raises(fedwidth.FedwidthError, match="no device can train with CoCoFL: training the last layer alone"):
        COCOFL.left_out(memory, [0.25])
    idle = COCOFL.select(PLAN, capacity=0.25, memory=memory)
    assert (idle.first, idle.stop, idle.trained(PLAN)) == (0, 0, frozenset())


def test_the_budget_is_what_heterofl_takes_and_frozen_weights_are_held_once():
    """The numbers of the played step, put together again."""
    run = Experiment(small("method.name=cocofl", "model.options={hidden=[16,16]}", "devices.capacities=a1-b1"))
    budget, last = run.first_server().memory["bytes.0.5"].tolist()
    takes = step_memory(run.objective, run.data, run.settings)
    assert budget == takes(skeleton(run.model, run.plan, run.plan.counts(0.5))).growth
    part = Layers.of(run.plan, 2, 3)
    found, frozen = takes(part.module(run.model, run.plan)), 4 * (64 * 16 + 16 + 16 * 16 + 16)
    assert last == found.growth - frozen
    assert found.optimiser == 4 * (16 * 10 + 10)


@pytest.mark.parametrize(("average", "middle"), [("all", 3 / 4 * 5 + 1 / 4 * 9), ("holders", 5.0)])
def test_one_round_of_two_clients_that_train_different_layers(average, middle):
    """All weights are 9. Client 0 (weight 1) trains the last layer and sets it to 1, client 1 (weight 3) the last two
    and sets them to 5: the last is (1 + 3 x 5) / 4 = 4. The middle moves by 3/4 of the way from 9 to 5, which is 6, or
    is 5 where only holders count; the first is as it was."""
    method = fedwidth.method("cocofl", average=average)
    state = {name: torch.full_like(tensor, 9.0) for name, tensor in fedwidth.state_of(net()).items()}
    sums, tasks = [], []
    for client, (first, value, weight) in enumerate(((2, 1.0, 1.0), (1, 5.0, 3.0))):
        part = Layers.of(PLAN, first, 3)
        sub = {name: torch.full_like(tensor, value) for name, tensor in part.cut(state, PLAN).items()}
        tasks.append(Task(client, 0.5, part, client))
        sums.append(part.accumulator())
        sums[-1].add(fedwidth.Update(sub, part, weight))
    new = method.finish(Closing(state, sums, PLAN, tasks=tasks, options=method.values))
    assert all(set(new[name].unique().tolist()) == {4.0} for name in LAST)
    assert all(set(new[name].unique().tolist()) == {middle} for name in MIDDLE)
    assert all(torch.equal(new[name], state[name]) for name in FIRST)


def test_what_a_part_costs():
    """The whole model comes down, the layers that are trained go up; nothing goes back before the first of them.

    Of the last layer alone the backward pass has its weights' gradient, 16 multiply-adds; of the last two those of
    both, 16 + 64, and the gradient of the last one's inputs, 16.
    """
    macs = 4 * 8 + 8 * 8 + 8 * 2
    for first, trained, backward in ((2, 18, 16), (1, 90, 96)):
        cost = Layers.of(PLAN, first, 3).cost(net(), PLAN, torch.randn(2, 4), capacity=0.5)
        assert (cost.bytes_down, cost.bytes_up) == (520, 4 * trained)
        assert (cost.macs, cost.step_macs) == (macs, macs + backward)
    idle = Layers.of(PLAN, 0, 0).cost(net(), PLAN, torch.randn(2, 4), capacity=0.5)
    assert (idle.bytes_up, idle.step_macs) == (0, macs)


def test_frozen_layers_send_no_buffers():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    example = torch.randn(2, 1, 8, 8)
    plan = fedwidth.trace(model, example)
    cost = Layers.of(plan, 1, 2).cost(model, plan, example, capacity=0.5)
    whole = Index.whole(plan).cost(model, plan, example, capacity=1.0)
    assert cost.bytes_up == 4 * (144 * 2 + 2)
    assert cost.bytes_down == whole.bytes_down


def test_only_the_trained_layers_need_a_gradient_and_nothing_is_kept_before_them():
    module = Layers.of(PLAN, 1, 2).module(net(), PLAN)
    assert {name for name, p in module.named_parameters() if p.requires_grad} == set(MIDDLE)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        module(torch.randn(7, 4)).sum().backward()
    assert (7, 4) not in kept
    assert module[0].weight.grad is None


def test_the_draw_depends_on_seed_round_and_client_alone():
    memory = {"runs.0.5": torch.tensor([[0, 1], [1, 2], [2, 3]])}

    def drawn(**at):
        return COCOFL.select(PLAN, capacity=0.5, memory=memory, **at).first

    assert drawn(seed=1, round=4, client=0, clients=2, number=7) == drawn(
        seed=1, round=4, client=5, clients=9, number=7
    )
    for name in ("seed", "round", "number"):
        ways = {drawn(**{"seed": 1, "round": 4, "number": 7, name: value}) for value in range(40)}
        assert ways == {0, 1, 2}, name


SMALL = ("model.options={hidden=[16,16]}", "devices.capacities=a1-b1", "devices.per_round=6")


def test_at_full_capacity_it_is_fedavg():
    plain, found = (
        Experiment(small(f"method.name={name}", *SMALL, "devices.capacities=a1")).run() for name in ("fedavg", "cocofl")
    )
    assert same(plain.server.state, found.server.state)
    assert plain.summary["bytes_up"] == found.summary["bytes_up"]


def test_layers_that_nobody_trains_keep_their_bits_in_a_run():
    run = Experiment(small("method.name=cocofl", *SMALL, "devices.capacities=b1"))
    assert run.first_server().memory["runs.0.5"].tolist() == [[2, 3]]
    result = run.run()
    changed = {name for name, tensor in result.server.state.items() if not torch.equal(tensor, run.first_state[name])}
    assert changed == {"classifier.weight", "classifier.bias"}
    assert result.metrics[0]["bytes_up"] == 6 * 4 * (16 * 10 + 10)


def test_clients_that_train_different_layers_take_turns_in_one_module():
    """Which parameters are trained is set for each of them: they train as in a module of their own, bit for bit."""
    run = Experiment(small("method.name=cocofl", *SMALL))
    layers = layers_of(run.plan)
    for client, (first, stop) in enumerate(((2, 3), (0, 1), (1, 3), (0, 2))):
        task = Task(client, 0.5, Layers.of(run.plan, first, stop), client)
        sub = task.part.cut(run.first_state, run.plan)
        alone = replace(run.trainer, _skeletons={}).train(sub, task, 0).update.sub
        found = run.trainer.train(sub, task, 0).update.sub
        assert same(alone, found)
        changed = {name for name, tensor in found.items() if not torch.equal(tensor, sub[name])}
        assert changed == {name for layer in layers[first:stop] for name in layer}
    (skeleton,) = run.trainer._skeletons.values()
    assert all(parameter.grad is None for parameter in skeleton.module.parameters() if not parameter.requires_grad)


def test_devices_without_the_memory_are_left_out_of_a_run():
    run = Experiment(small("method.name=cocofl", *SMALL, "devices.capacities=a1-b1-e1"))
    assert list(run.unfit) == [0.0625]
    assert run.rounds.enrolled == (1.0, 0.5)
    assert {capacity for line in run.run().metrics for capacity in line["capacities"]} == {1.0, 0.5}


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path):
    settings = small("method.name=cocofl", *SMALL, "devices.capacities=a1-b1-e1", "rounds=4")
    whole, resumed = whole_and_resumed(settings, tmp_path)
    assert same(dict(whole.server.state), dict(resumed.server.state))


@pytest.mark.parametrize("engine", ["processes", "vectorised", "cuda"])
def test_engines_agree(engine):
    """Convolutions, group norms, and sums in double precision: tests/contracts/test_every_engine.py."""
    changes = ("method.name=cocofl", *SMALL)
    serial, found = (Experiment(small(*changes, f"engine={name}")).run().server.state for name in ("serial", engine))
    for name, tensor in serial.items():
        assert torch.allclose(tensor, found[name], rtol=1e-4, atol=1e-5), name


def test_it_can_be_trained_as_fedprox_and_not_as_scaffold():
    assert fedwidth.method("cocofl", local="fedprox").title == "CoCoFL with FedProx"
    with pytest.raises(fedwidth.FedwidthError, match="both remember"):
        fedwidth.method("cocofl", local="scaffold")


def test_activations_are_not_scaled_by_the_capacity():
    assert Task(0, 0.5, Layers.of(PLAN, 2, 3), 0).width == 1.0
