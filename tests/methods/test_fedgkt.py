"""FedGKT: its losses by hand, the boundary, and what travels, keyed by sample."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

import support_table
from fedwidth.core.submodel import state_of
from fedwidth.data import Shares
from fedwidth.engines import make_engine
from fedwidth.engines.support import why_not_support
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.methods import Beginning, method, under
from fedwidth.methods.fedgkt import distillation
from fedwidth.methods.shared.boundary import Upper, boundary_of, check_boundary, lower_half
from fedwidth.models import build
from fedwidth.plan import trace
from fedwidth.training.module_pass import ModulePass
from fedwidth.training.round import run_round
from small_runs import contents, ones, same, small, trainer_of

CLIENT, SERVER = torch.zeros(1, 2), torch.tensor([[2.0, 0.0]])


def run_of(*changes, options="{epochs=2}"):
    model = "model.options={hidden=[8, 8]}"
    return Experiment(small("method.name=fedgkt", f"method.options={options}", model, *changes))


@pytest.mark.parametrize(("temperature", "taught", "whole"), [(1.0, 0.327813, 1.020961), (3.0, 0.473532, 1.166679)])
def test_the_loss_of_a_client_that_knows_nothing(temperature, taught, whole):
    """Client (0, 0), label 0, server (2, 0): KD with T^2, and with CE = log 2 and alpha = 1 the whole loss."""
    assert distillation(CLIENT, SERVER, temperature).item() == pytest.approx(taught, abs=1e-6)
    data, partition = ones()
    trainer = trainer_of(Silent(), data, partition, name="fedgkt", temperature=temperature)
    found = Silent()
    held = trainer.method.first_memory(Beginning(state_of(found), trainer.plan, options=trainer.method.values))
    (task,) = trainer.method.assign(trainer.plan, [(0, 1.0)], 0, held)
    client = ModulePass.of(trainer, found, task, 0)
    client.rows = {"logits": SERVER}
    loss = trainer.rule.local.loss(client, torch.ones(1, 1), torch.tensor([0]))
    assert loss.item() == pytest.approx(whole, abs=1e-6)


class Silent(nn.Module):
    """Logits that are 0, whatever comes in."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 2), nn.Linear(2, 2)
        nn.init.zeros_(self.b.weight)
        nn.init.zeros_(self.b.bias)

    def forward(self, x):
        return self.b(self.a(x))


def test_equal_logits_teach_nothing():
    own = torch.tensor([[2.0, 0.0, -1.0]], requires_grad=True)
    loss = distillation(own, own.detach(), 3.0)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
    assert own.grad.abs().max().item() < 1e-6


class TestBoundary:
    @pytest.mark.parametrize(("name", "boundary"), [("cnn", "features.0"), ("preresnet18", "stem")])
    def test_features_and_the_upper_half_are_the_model(self, name, boundary):
        model = build(name, seed=0, data_shape=(3, 8, 8), classes=5, widths=[8, 16, 16, 16]).eval()
        inputs = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        assert boundary_of(model, 1) == boundary
        met, features, answer = lower_half(model, boundary, lambda: model(inputs))
        assert all(each.startswith(boundary) for each in met)
        upper = Upper(model, boundary, torch.zeros(2, 3, 8, 8), lambda network, given: network(given))
        with torch.no_grad():
            assert torch.equal(upper(features), answer)

    def test_what_looks_past_the_boundary_is_refused(self):
        class Around(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 8), nn.Linear(12, 3)

            def forward(self, x):
                return self.b(torch.cat([x, self.a(x)], 1))

        model, example = Around(), torch.randn(2, 4)
        beginning = Beginning(state_of(model), trace(model, example), model=model, example=example)
        with pytest.raises(OptionError, match="splits the model after 'a', but what comes after it looks at more than"):
            check_boundary(beginning, 1, "FedGKT")

    def test_a_server_without_layers_is_refused(self):
        with pytest.raises(OptionError, match="after layer 3 of 3, which leaves the server nothing to train"):
            run_of(options="{layers=3}")

    def test_clients_give_out_features_of_one_size(self):
        run = run_of(options="{layers=2}")
        tasks = run.rounds.assign(run.first_server(), [(0, 1.0), (1, 0.25)])
        shapes = [{n: tuple(t.shape) for n, t in task.part.cut({}, run.plan).items()} for task in tasks]
        assert shapes[0] == shapes[1], "both layers before the boundary are whole, and nothing else is left to narrow"
        (narrow,) = run_of().rounds.assign(run_of().first_server(), [(1, 0.25)])
        found = narrow.part.cut({}, run.plan)
        assert found["hidden.1.weight"].shape == (8, 64)
        assert found["hidden.3.weight"].shape == (2, 8)


def test_features_logits_and_labels_of_every_sample_leave_the_device_and_are_counted():
    run = run_of("rounds=2")
    engine, server = make_engine(run.trainer), run.first_server()
    server, tasks, report = run_round(run.rounds, server, [(0, 0.5)], engine)
    samples, lower = run.partition.size(0), 8 * 64 + 8
    each = 8 + 8 * 4 + 10 * 4 + 8  # number, features, logits, label
    assert report.answered == {0: (samples, samples * each + lower * 4)}
    _, up = run.costs.traffic(tasks, report.answered)
    assert up == samples * each + lower * 4
    (task,) = run.rounds.send(server, run.rounds.assign(server, [(0, 0.5)]))
    down, _ = run.costs.traffic([task])
    assert down == samples * 10 * 4, "logits of its samples, and no model any more"


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("engine", ["serial", "vectorised", "cuda"])
def test_logits_are_found_by_the_sample_whatever_the_order_of_batches(engine, shift):
    """Logits that are the pixels of their sample: a loss that compares them sees whether each got its own."""
    run = run_of(f"engine={engine}", "training.augment=false")

    def loss(client, inputs, targets):
        plain = client.loss(client.logits(inputs), targets)
        if "logits" not in client.rows:  # a trial whether it can be stacked
            return plain
        apart = (client.rows["logits"] - inputs.flatten(1)[:, 16:26]).abs().sum(1)
        return plain + 1000 * client.mean(apart, targets)

    rule = replace(run.method.local, loss=loss)
    trainer = replace(run.trainer, method=replace(run.method, local=rule))
    server, tasks = run.first_server(), []
    for task in run.rounds.assign(run.first_server(), [(0, 1.0), (1, 1.0), (2, 0.5)]):
        images, _ = run.data.batch(run.data.train, run.partition[task.client])
        tasks.append(replace(task, given={"logits": images.flatten(1)[:, 16:26].roll(shift, 0)}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, report = make_engine(trainer).run(server.state, tasks, 1)
    if shift:
        assert min(report.losses) > 100, "the test sees it"
    else:
        assert max(report.losses) < 10


@pytest.mark.parametrize("engine", ["vectorised", "cuda"])
def test_clients_with_and_without_logits_train_in_one_round(engine):
    """Of the second round some clients took part in the first one, and others have no logits yet."""
    ends = []
    for each in ("serial", engine):
        run = run_of(f"engine={each}", "training.batch_size=16")
        made, server = make_engine(run.trainer), run.first_server()
        for cohort in ([(0, 1.0), (1, 0.5)], [(0, 1.0), (1, 0.5), (2, 1.0), (3, 0.5)]):
            server, _, report = run_round(run.rounds, server, cohort, made)
        ends.append((server, report))
    (server, report), (other, found) = ends
    torch.testing.assert_close(other.state, server.state, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.losses, report.losses, rtol=1e-5, atol=1e-5)
    assert found.passes == report.passes
    assert found.answered == report.answered


def test_clients_that_have_the_same_samples_are_not_stacked():
    """A stack finds logits by the sample, and these would be another client's."""
    run = run_of("engine=vectorised")
    doubled = Shares(torch.arange(50).repeat(6), torch.arange(7) * 50)
    trainer = replace(run.trainer, partition=replace(run.partition, train=doubled))
    assert "some have the same sample" in str(why_not_support(trainer, "vectorised"))
    assert why_not_support(trainer, "cuda") is None


def test_the_server_alone_trains_what_comes_after_the_boundary():
    run = run_of("rounds=1", "devices.per_round=2", options="{epochs=0}")
    result = run.run()
    for name in ("hidden.3.weight", "classifier.weight"):
        assert torch.equal(result.server.state[name], run.first_state[name])
    lower = [under(memory, f"model.{run.cohorts.capacity_of(c, 0):g}") for c, memory in result.server.clients.items()]
    mean = torch.stack([own["hidden.1.weight"] for own in lower]).mean(0)
    torch.testing.assert_close(result.server.state["hidden.1.weight"], mean)


def test_the_published_logits_are_those_before_the_last_steps():
    ends = {}
    for published in ("true", "false"):
        run = run_of("rounds=1", options=f"{{epochs=1, published={published}}}")
        ends[published] = run.run().server
    assert same(dict(ends["true"].state), dict(ends["false"].state)), "what the server learns is the same"
    names = [name for name in ends["true"].memory if name.startswith("logits.")]
    assert names
    assert not any(torch.equal(ends["true"].memory[n], ends["false"].memory[n]) for n in names)


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


def test_augmentation_is_off():
    assert not run_of().settings.training.augment
    with pytest.raises(OptionError, match=r"FedGKT needs training.augment = False, not True: logits and features"):
        small("method.name=fedgkt", "training.augment=true")


def test_it_says_what_leaves_the_device():
    assert "labels" in method("fedgkt").uploads


def test_features_whose_channels_lie_last_reach_a_group_norm():
    """Where features keep their layout, PyTorch ends the whole process in the backward pass."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    upper = Upper(model, "0", torch.zeros(1, 1, 8, 8), lambda network, inputs: network(inputs))
    features = torch.randn(3, 4, 6, 6).contiguous(memory_format=torch.channels_last)
    upper(features).sum().backward()
    assert model[1].weight.grad.abs().sum() > 0


def test_what_comes_before_the_boundary_is_whole_for_clients_of_every_width():
    """An embedding before the first layer is averaged over all clients, so all hold it alike."""
    state = support_table.run_of("fedgkt", "next-word").run().server.state
    assert all(torch.isfinite(tensor.double()).all() for tensor in state.values())
