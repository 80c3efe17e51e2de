"""The server's step, two rounds by hand for each optimiser."""

import math

import pytest
import torch

import fedwidth
from fedwidth.errors import OptionError, StateError
from fedwidth.experiment import Experiment
from fedwidth.settings import ServerSettings
from fedwidth.training.engine import Report
from fedwidth.training.server.state import Server
from small_runs import same, small

TRAINED = frozenset({"w"})


def advance(server, change, settings):
    """One round in which averaging would change the elements of w by so much."""
    aggregate = {"w": server.state["w"] + torch.tensor(change), "buffer": server.state["buffer"] + 1}
    return server.advance(aggregate, None, settings, TRAINED)


def two_rounds(first, second, **settings):
    """w after each round, from (1, 2, 3); double precision, so that hand-made sums hold to the last digits."""
    server = Server({"w": torch.tensor([1.0, 2.0, 3.0], dtype=torch.double), "buffer": torch.zeros(1)})
    states = []
    for change in (first, second):
        server = advance(server, change, ServerSettings(**settings))
        states.append(server.state["w"].tolist())
    assert server.round == 2
    assert server.state["buffer"].item() == 2  # buffers take the aggregate as it is
    return states


def test_plain_takes_the_aggregate():
    aggregate = {"w": torch.tensor([0.1, 0.2])}
    server = Server({"w": torch.zeros(2)}).advance(aggregate, None, ServerSettings(), TRAINED)
    assert same(dict(server.state), aggregate)
    assert server.moments == {}


def test_plain_step_and_its_decay():
    # Steps 0.5 and 0.5 * 0.8 = 0.4 of the change.
    one, two = two_rounds([1.0, -2.0, 0.0], [1.0, 0.0, 0.0], lr=0.5, lr_decay=0.8)
    assert one == pytest.approx([1.5, 1.0, 3.0])
    assert two == pytest.approx([1.9, 1.0, 3.0])


def test_step_of_one_that_decays():
    one, two = two_rounds([1.0, 0.0, 0.0], [1.0, 0.0, 0.0], lr_decay=0.5)
    assert (one[0], two[0]) == (pytest.approx(2.0), pytest.approx(2.5))


def test_fedavgm():
    # m = 1, then 0.9 * 1 + 2 = 2.9. The second element stands still in round two, and so does its momentum.
    one, two = two_rounds([1.0, 1.0, 0.0], [2.0, 0.0, 0.0], optimiser="fedavgm", momentum=0.9, lr=0.5)
    assert one == pytest.approx([1.5, 2.5, 3.0])
    assert two == pytest.approx([1.5 + 0.5 * 2.9, 2.5, 3.0])


def test_fedadam():
    # m = 0.1 * 2 = 0.2, v = 0.01 * 4 = 0.04, step 0.2 / (0.2 + 0.1);
    # then m = 0.9 * 0.2 + 0.1 * 1 = 0.28, v = 0.99 * 0.04 + 0.01 = 0.0496.
    settings = {"optimiser": "fedadam", "momentum": 0.9, "second_moment": 0.99, "epsilon": 0.1, "lr": 0.3}
    one, two = two_rounds([2.0, 2.0, 0.0], [1.0, 0.0, 0.0], **settings)
    assert one == pytest.approx([1 + 0.3 * 0.2 / 0.3, 2 + 0.3 * 0.2 / 0.3, 3.0])
    assert two == pytest.approx([one[0] + 0.3 * 0.28 / (math.sqrt(0.0496) + 0.1), one[1], 3.0])


def test_fedyogi():
    # v = 0 + 0.01 * 4 = 0.04 (v below the square: it grows by the square's share);
    # then the square 0.01 is below v: v = 0.04 - 0.01 * 0.01 = 0.0399; m = 0.9 * 0.2 + 0.1 * 0.1 = 0.19.
    settings = {"optimiser": "fedyogi", "momentum": 0.9, "second_moment": 0.99, "epsilon": 0.1, "lr": 0.3}
    one, two = two_rounds([2.0, 2.0, 0.0], [0.1, 0.0, 0.0], **settings)
    assert one == pytest.approx([1 + 0.3 * 0.2 / 0.3, 2 + 0.3 * 0.2 / 0.3, 3.0])
    assert two == pytest.approx([one[0] + 0.3 * 0.19 / (math.sqrt(0.0399) + 0.1), one[1], 3.0])


@pytest.mark.parametrize("optimiser", ["fedavgm", "fedadam", "fedyogi"])
def test_an_element_that_stood_still_goes_on_as_if_the_round_had_not_been(optimiser):
    settings = ServerSettings(optimiser=optimiser, lr=0.1)
    start = Server({"w": torch.tensor([1.0]), "buffer": torch.zeros(1)})
    paused = advance(advance(advance(start, [0.5], settings), [0.0], settings), [0.25], settings)
    direct = advance(advance(start, [0.5], settings), [0.25], settings)
    assert torch.equal(paused.state["w"], direct.state["w"])
    assert same(dict(paused.moments), dict(direct.moments))


@pytest.mark.parametrize("optimiser", ["plain", "fedavgm", "fedadam", "fedyogi"])
def test_weights_nobody_trained_keep_their_bits(optimiser):
    # HeteroFL at a half and less: the units beyond the first half are never held by anybody.
    experiment = Experiment(small("method.name=heterofl", "devices.capacities=b1-c1", f"server.optimiser={optimiser}"))
    before = experiment.model.hidden[1].weight.detach().clone()
    after = experiment.run().server.state["hidden.1.weight"]
    assert torch.equal(after[4:], before[4:])
    assert (after[:4] != before[:4]).any()


@pytest.mark.parametrize("label_rows", [True, False])
def test_rows_of_labels_nobody_had_keep_their_bits(label_rows):
    # One client with two labels; with weight decay the other eight rows change unless they are left out.
    settings = small(
        "rounds=1",
        "devices.per_round=1",
        "data.partition_options.per_client=2",
        "training.weight_decay=0.5",
        f"server.label_rows={str(label_rows).lower()}",
    )
    experiment = Experiment(settings)
    before = experiment.model.classifier.weight.detach().clone()
    result = experiment.run()
    labels = experiment.partition.labels[result.metrics[0]["clients"][0]]
    changed = (result.server.state["classifier.weight"] != before).any(1)
    assert len(labels) == 2
    assert changed.nonzero().flatten().tolist() == (labels.tolist() if label_rows else list(range(10)))


@pytest.mark.parametrize("optimiser", ["fedavgm", "fedadam", "fedyogi"])
def test_server_optimisers_learn(optimiser):
    settings = small(
        "rounds=20",
        "devices.per_round=6",
        "devices.capacities=a1",
        "evaluation.every=20",
        f"server.optimiser={optimiser}",
        "server.lr=0.1" if optimiser != "fedavgm" else "server.lr=0.5",
    )
    assert Experiment(settings).run().summary["global_accuracy"] > 0.6  # chance is 0.1


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_step_that_leaves_the_range_of_numbers_is_refused(engine, tmp_path):
    """In the round after it, a client would be blamed."""
    with pytest.raises(StateError, match=r"^round 0: the server's step \(server.optimiser = plain, server.lr = 1e"):
        Experiment(small("server.lr=1e308", f"engine={engine}")).run(tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))


def test_norms_of_a_capacity_that_leave_the_range_of_numbers_are_refused():
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 4), torch.nn.LayerNorm(4), torch.nn.ReLU(), torch.nn.Linear(4, 10)
    )
    given = small("server.norms=by-capacity", "server.lr=1.1", "rounds=1")
    experiment = Experiment(given, model=model)
    server = experiment.first_server()
    server.norms[0.5]["2.bias"].fill_(torch.inf)
    with pytest.raises(StateError, match=r"'0\.5/2\.bias' a value that is not finite"):
        experiment.rounds.end(server, [], [], Report((), ()))


@pytest.mark.parametrize("name", ["momentum", "second_moment"])
def test_moments_are_kept_by_shares_below_one(name):
    with pytest.raises(OptionError, match=f"^server.{name} must be a number of at least 0 and below 1, not 1"):
        small(f"server.{name}=1.0")


@pytest.mark.parametrize("optimiser", ["plain", "fedavgm"])
@pytest.mark.parametrize(
    ("aggregate", "why"),
    [
        ({"b": torch.zeros(2)}, r"^the aggregate lacks 'w' \(3,\) of the old state"),
        ({"w": torch.zeros(1), "b": torch.zeros(2)}, r"another shape for 'w': \(1,\), in the old state \(3,\)"),
        ({"w": torch.zeros(3), "b": torch.zeros(2), "c": torch.zeros(2)}, "holds 'c', which the old state lacks"),
    ],
)
def test_an_aggregate_of_other_tensors_is_refused(aggregate, why, optimiser):
    """Broadcasting would make a step of one that is too small."""
    old = {"w": torch.zeros(3), "b": torch.zeros(2)}
    with pytest.raises(StateError, match=why):
        fedwidth.server_step(old, aggregate, ServerSettings(optimiser=optimiser))
