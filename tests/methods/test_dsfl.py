"""DS-FL: its target by hand, and what clients keep, send and are given."""

import math
import warnings

import pytest
import torch
from torch import nn

from fedwidth.cli.runs.first_lines import explain_memory
from fedwidth.config.read import read_settings
from fedwidth.engines import make_engine
from fedwidth.errors import FellBack, OptionError
from fedwidth.experiment import Experiment
from fedwidth.methods import under
from fedwidth.methods.dsfl import together
from fedwidth.methods.shared.distillation import divergence
from fedwidth.training.round import run_round
from small_runs import contents, same, small

SAID = torch.tensor([[[0.7, 0.2, 0.1]], [[0.3, 0.5, 0.2]]], dtype=torch.float64)


def entropy(probabilities):
    return -float((probabilities * probabilities.log()).sum())


def run_of(*changes, options="{epochs=2, batch_size=16}"):
    return Experiment(small("method.name=dsfl", f"method.options={options}", *changes))


def test_answers_are_averaged_and_their_entropy_is_reduced():
    """Mean (0.5, 0.35, 0.15); softmax of ten times that: (0.797876, 0.178030, 0.024094)."""
    mean, reduced = together(SAID, "mean", 0.1)[0], together(SAID, "era", 0.1)[0]
    assert mean.tolist() == pytest.approx([0.5, 0.35, 0.15], abs=1e-12)
    assert reduced.tolist() == pytest.approx([0.797876, 0.178030, 0.024094], abs=1e-6)
    assert (entropy(mean), entropy(reduced)) == pytest.approx((0.998579, 0.577176), abs=1e-6)


def test_reduction_can_raise_the_entropy_of_many_classes():
    """Of 100 classes one has 0.05: ratio 5.21 becomes exp(0.404) = 1.50, entropy 4.5639 becomes 4.6041."""
    mean = torch.full((1, 1, 100), 0.95 / 99, dtype=torch.float64)
    mean[0, 0, 0] = 0.05
    reduced = together(mean, "era", 0.1)[0]
    assert float(reduced[0] / reduced[1]) == pytest.approx(math.exp((0.05 - 0.95 / 99) / 0.1))
    assert (entropy(mean[0, 0]), entropy(reduced)) == pytest.approx((4.5639, 4.6041), abs=1e-4)


def test_an_answer_equal_to_the_students_teaches_nothing():
    student = torch.tensor([[2.0, 0.0, -1.0]], requires_grad=True)
    own = torch.softmax(student.detach(), -1)
    loss = divergence(student, together(own[None], "mean", 0.1), 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-7)
    assert student.grad.abs().max().item() < 1e-7


def test_weights_stay_with_clients_and_are_kept_from_round_to_round():
    run = run_of("rounds=4", "evaluation.every=4")
    tasks = run.rounds.assign(run.first_server(), [(0, 0.5), (1, 0.5), (2, 1.0)])
    assert len({task.part.key for task in tasks}) == 3
    assert all(task.part.is_new for task in tasks)
    result = run.run()
    clients = result.server.clients
    drawn = {client for line in result.metrics for client in line["clients"]}
    assert set(clients) == drawn
    for client, memory in clients.items():
        width = run.cohorts.capacity_of(client, 0)
        first = under(result.server.memory, f"first.{width:g}")
        own = under(memory, f"model.{width:g}")
        assert own.keys() == first.keys()
        assert all(own[name].shape == first[name].shape for name in own)
        assert not same(own, first), "it was trained"


def test_a_client_goes_on_from_its_own_model_whatever_the_server_has():
    run, engine = run_of("rounds=3"), None
    engine, server, cohort = make_engine(run.trainer), run.first_server(), [(0, 0.5)]
    server, _, _ = run_round(run.rounds, server, cohort, engine)
    own = under(server.clients[0], "model.0.5")
    (task,) = run.rounds.assign(server, cohort)
    assert not task.part.is_new
    assert same(task.part.cut({}, run.plan), own)
    assert (server.state["hidden.1.weight"] != run.first_state["hidden.1.weight"]).any()


def test_what_is_sent_is_probabilities_and_sample_numbers_and_every_byte_is_counted():
    run = run_of("rounds=2", "devices.per_round=2", options="{samples=10}")
    engine, server, cohort = make_engine(run.trainer), run.first_server(), [(0, 0.5), (1, 1.0)]
    sizes = [int(run.costs.of(task).bytes) for task in run.rounds.assign(server, cohort)]
    down = up = None
    for round in range(2):
        server, tasks, report = run_round(run.rounds, server, cohort, engine)
        down, up = run.costs.traffic(tasks, report.answered)
        answered = 10 * 8 + 10 * 10 * 4
        assert up == 2 * answered, "ten numbers of 8 bytes, and ten rows of ten probabilities"
        labels = 0 if round == 0 else 10 * 8 + 10 * 10 * 4
        assert down == 2 * (10 * 8 + labels) + (sum(sizes) if round == 0 else 0), "models travel once"
    assert report.answered == {0: (10, answered), 1: (10, answered)}
    samples = [run.partition.size(client) for client in (0, 1)]
    assert list(report.passes) == [5 * 10 + own for own in samples], "five times what all said, and once its own"


def test_without_epochs_nobody_is_taught_and_the_server_stays_as_it_was():
    run = run_of("rounds=2", options="{epochs=0}")
    assert same(dict(run.run().server.state), dict(run.first_state))


def test_the_server_alone_may_have_full_width():
    run = run_of("rounds=2", "devices.capacities=b1-c1")
    result = run.run()
    assert set(run.rounds.enrolled) == {0.5, 0.25}
    assert not under(result.server.memory, "first.1")
    assert result.model.hidden[1].out_features == 8


def test_capacities_that_change_leave_a_model_of_each_with_the_client():
    run = run_of("devices.dynamic=true")
    engine, server = make_engine(run.trainer), run.first_server()
    for cohort in ([(0, 0.5)], [(0, 0.25)]):
        server, _, _ = run_round(run.rounds, server, cohort, engine)
    half, quarter = (under(server.clients[0], f"model.{width}") for width in ("0.5", "0.25"))
    assert half["hidden.1.weight"].shape[0] == 4
    assert quarter["hidden.1.weight"].shape[0] == 2


@pytest.mark.parametrize("where", ["host", "disk"])
def test_it_resumes_to_the_same_bits(tmp_path, where):
    class Enough(Exception):
        pass

    def leave(line):
        if line["round"] == 2:
            raise Enough

    changes = ("rounds=4", "checkpoint_every=1", f"client_memory={where}")
    run_of(*changes).run(tmp_path / "whole")
    with pytest.raises(Enough):
        run_of(*changes).run(tmp_path / "parts", on_round=leave)
    run_of(*changes).run(tmp_path / "parts", resume=True)
    assert contents(tmp_path / "whole") == contents(tmp_path / "parts")
    whole, parts = ({f.name: f.read_bytes() for f in (tmp_path / n / "clients").iterdir()} for n in ("whole", "parts"))
    assert whole == parts


def test_widths_are_measured_by_the_models_of_clients():
    result = run_of("rounds=2", "evaluation.capacities=[1, 0.5, 0.25]", "evaluation.every=1").run()
    line = result.metrics[-1]
    for width in (1.0, 0.5, 0.25):
        present = width in line["capacities"]
        assert (line["capacity_accuracy"][f"{width:g}"] is not None) == present
    assert "capacity_accuracy_mean" not in line


def test_a_run_says_how_much_memory_clients_models_take():
    run = run_of()
    largest = (8 * 64 + 8 + 10 * 8 + 10) * 4
    assert f"(6 of {largest / 2**20:.3g} MiB), kept in memory" in explain_memory(run)
    assert "kept in files" in explain_memory(run_of("client_memory=disk"))


def test_ray_refuses_it_with_the_reason():
    with pytest.raises(OptionError, match="DS-FL sends other parts than slices, which Ray's workers do not take"):
        run_of("engine=ray").run()


def test_the_quick_start_takes_it():
    settings = read_settings("quickstart", ["method.name=dsfl", "rounds=3"], only="fedrolex").main
    assert settings.data.public == 0.1
    assert Experiment(settings).method.title == "DS-FL"


@pytest.mark.parametrize("name", ["dsfl", "fedgkt"])
@pytest.mark.parametrize("engine", ["vectorised", "cuda"])
def test_what_clients_keep_does_not_depend_on_the_engine(name, engine):
    """Also the second name of a weight that has two, so that a run may go on with another engine."""
    own, model = [], Tied()
    for each in ("serial", engine):
        changes = [f"method.name={name}", f"engine={each}", "rounds=2", "devices.per_round=4"]
        run = Experiment(small(*changes), model=model)
        with warnings.catch_warnings():
            warnings.simplefilter("error", FellBack)
            own.append(run.run().server.clients)
    one, other = own
    assert set(one) == set(other)
    for client, memory in one.items():
        assert list(memory) == list(other[client])
        for tensor in memory:
            torch.testing.assert_close(other[client][tensor], memory[tensor], rtol=1e-4, atol=1e-5)


class Tied(nn.Module):
    """Two layers share their weight."""

    def __init__(self):
        super().__init__()
        self.flat = nn.Flatten()
        self.first, self.a, self.b, self.out = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 10)
        self.b.weight = self.a.weight

    def forward(self, x):
        x = self.first(self.flat(x)).relu()
        return self.out(self.b(self.a(x).relu()).relu())
