"""SCAFFOLD: rounds worked by hand on every engine, and the mistakes others made."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedwidth.data import Partition, Shares, from_tensors
from fedwidth.engines import make_engine
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.methods import Method, method, under
from fedwidth.settings import (
    DataSettings,
    DeviceSettings,
    EvaluationSettings,
    ServerSettings,
    Settings,
    TrainingSettings,
)
from fedwidth.training.round import run_round
from small_runs import contents, small

ENGINES = ["serial", "cuda", "vectorised"]


class OneWeight(nn.Module):
    """Answers its one weight, whatever it is asked. The two layers are there to be sliced, and count for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.a, self.b = (nn.Linear(2, 2, bias=False, dtype=torch.float64) for _ in range(2))

    def forward(self, x):
        return self.w + 0.0 * self.b(self.a(x))


def quadratic(client, inputs, targets):
    """a/2 (w - b)^2 with (a, b) the sample: its gradient is a (w - b)."""
    w = client.logits(inputs)[:, 0]
    return client.mean(inputs[:, 0] / 2 * (w - inputs[:, 1]).square(), targets)


QUADRATIC: Method = replace(
    method("scaffold"), local=replace(method("scaffold").local, loss=quadratic, steady=True), name="quadratic"
)


def run_of(engine="serial", *, rounds=1, clients=((1.0, 4.0), (2.0, -1.0)), per_round=None, registered=None, **options):
    """Clients with gradients y - 4 and 2 (y + 1), a rate of 0.1 and two epochs of one batch: K = 2."""
    samples = [*clients, *[(1.0, 0.0)] * ((registered or len(clients)) - len(clients))]
    x = torch.tensor(samples, dtype=torch.float64)
    y = torch.zeros(len(x), dtype=torch.long)
    data = from_tensors(x, y, x, y, classes=2)
    shares = Shares.of(torch.arange(len(x)).numpy(), len(x))
    settings = Settings(
        rounds=rounds,
        engine=engine,
        data=DataSettings(clients=len(x)),
        devices=DeviceSettings("a1", per_round=per_round or len(x)),
        training=TrainingSettings(
            lr=0.1, momentum=0.0, weight_decay=0.0, clip=0.0, batch_size=1, epochs=2, mask="none"
        ),
        server=ServerSettings(label_rows=False),
        evaluation=EvaluationSettings(every=rounds, local=False),
    )
    chosen = QUADRATIC.with_options(**options)
    partition = Partition("by hand", shares, shares, data.train.targets)
    return Experiment(settings, model=OneWeight(), data=data, partition=partition, method=chosen)


def numbers(server):
    x, c = float(server.state["w"]), float(under(server.memory, "control")["w"])
    own = [float(under(server.clients[client], "own")["w"]) for client in sorted(server.clients)]
    return x, c, own


@pytest.mark.parametrize("engine", ENGINES)
class TestByHand:
    # x = 0, rate 0.1, K = 2: y = (0.4, then 0.76) and (-0.2, then -0.36).

    def test_the_first_round_of_option_two(self, engine):
        # c_i = (0 - 0.76) / 0.2 = -3.8 and 1.8; x = (0.76 - 0.36) / 2 = 0.2; c = (-3.8 + 1.8) / 2 = -1.
        x, c, own = numbers(run_of(engine).run().server)
        assert x == pytest.approx(0.2)
        assert own == pytest.approx([-3.8, 1.8])
        assert c == pytest.approx(-1.0)

    def test_the_second_round_of_option_two(self, engine):
        # Corrections -c_i + c: 2.8 and -2.8. y1: 0.2 - 0.1 (-3.8 + 2.8) = 0.3, 0.3 - 0.1 (-3.7 + 2.8) = 0.39;
        # y2: 0.2 - 0.1 (2.4 - 2.8) = 0.24, 0.24 - 0.1 (2.48 - 2.8) = 0.272. x = 0.331.
        # c_1 = -3.8 + 1 + (0.2 - 0.39) / 0.2 = -3.75; c_2 = 1.8 + 1 + (0.2 - 0.272) / 0.2 = 2.44; c = -0.655.
        x, c, own = numbers(run_of(engine, rounds=2).run().server)
        assert x == pytest.approx(0.331)
        assert own == pytest.approx([-3.75, 2.44])
        assert c == pytest.approx(-0.655)
        assert c == pytest.approx(sum(own) / 2), "with everyone taking part, c is the mean of the c_i"

    def test_option_one_takes_the_gradient_at_the_start(self, engine):
        x, c, own = numbers(run_of(engine, option="I").run().server)
        assert own == pytest.approx([-4.0, 2.0])
        assert (x, c) == (pytest.approx(0.2), pytest.approx(-1.0))

    def test_the_server_rate(self, engine):
        x, c, _ = numbers(run_of(engine, server_rate=0.5).run().server)
        assert (x, c) == (pytest.approx(0.1), pytest.approx(-1.0))

    def test_changes_are_divided_by_all_clients_not_by_those_of_the_round(self, engine):
        # Four clients, of which two take part: whoever they are, c is the sum of their variates over 4.
        _, c, own = numbers(run_of(engine, registered=4, per_round=2).run().server)
        assert len(own) == 2
        assert c == pytest.approx(sum(own) / 4)

    def test_two_of_four_clients(self, engine):
        # The two clients above of N = 4: c = (-3.8 + 1.8) / 4 = -0.5.
        run = run_of(engine, registered=4)
        server, _, _ = run_round(run.rounds, run.first_server(), [(0, 1.0), (1, 1.0)], make_engine(run.trainer))
        assert numbers(server) == (pytest.approx(0.2), pytest.approx(-0.5), pytest.approx([-3.8, 1.8]))


def test_variates_begin_at_zero_so_the_first_round_is_fedavg():
    plain = ["training.momentum=0", "training.clip=0", "rounds=1"]
    states = [Experiment(small(f"method.name={n}", *plain)).run().server.state for n in ("fedavg", "scaffold")]
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=0, atol=1e-7)


def test_steps_are_batches_over_all_epochs():
    # Another reading of K (samples, or one epoch's batches) gives variates that are no gradients: with a gradient that
    # does not change, w -> a w, c_i must be that gradient, whatever batch size and epochs.
    run = run_of(clients=((1e-12, -4e12),), rounds=1)
    settings = replace(run.settings, training=replace(run.settings.training, epochs=7))
    again = Experiment(settings, model=run.model, data=run.data, partition=run.partition, method=run.method)
    for each in (run, again):
        _, _, own = numbers(each.run().server)
        assert own == pytest.approx([4.0])


@pytest.mark.parametrize("change", ["training.momentum=0.5", "training.clip=1.0", "training.optimiser=adam"])
def test_what_would_make_variates_no_gradients_is_refused(change):
    with pytest.raises(OptionError, match="SCAFFOLD needs training"):
        small("method.name=scaffold", change)


def test_only_what_is_trained_has_variates():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 10))
    for engine in ("serial", "cuda"):
        run = Experiment(small("method.name=scaffold", f"engine={engine}", "rounds=2"), model=model)
        server = run.run().server
        names = set(under(server.memory, "control"))
        assert names == {name for name, _ in model.named_parameters()}
        for memory in server.clients.values():
            assert set(under(memory, "own")) == names
            assert all(torch.isfinite(tensor).all() for tensor in memory.values())


def test_in_partial_training_elements_a_client_does_not_hold_keep_their_variate():
    settings = small("method.name=heterofl", "local.name=scaffold", "devices.capacities=c1", "rounds=2")
    run = Experiment(settings)
    server = run.run().server
    index = run.method.select(run.plan, capacity=0.25)
    for memory in [under(server.memory, "control"), *(under(m, "own") for m in server.clients.values())]:
        for name, tensor in memory.items():
            held = torch.zeros(tensor.shape, dtype=torch.bool)
            held[torch.meshgrid(*index[name], indexing="ij")] = True
            assert not tensor[~held].any()
    assert any(under(server.memory, "control")[name].any() for name in run.plan.parameters)


@pytest.mark.parametrize("where", ["host", "disk"])
@pytest.mark.parametrize("rounds", [2, 3])
def test_a_run_that_was_killed_goes_on_to_the_same_bits(tmp_path, where, rounds):
    changes = ["method.name=scaffold", f"client_memory={where}", "rounds=5", "checkpoint_every=2"]
    Experiment(small(*changes)).run(tmp_path / "whole")

    class Killed(Exception):
        pass

    def kill(line):
        if line["round"] == rounds:  # after a checkpoint, and one round later: files of that round are left behind
            raise Killed

    with pytest.raises(Killed):
        Experiment(small(*changes)).run(tmp_path / "parts", on_round=kill)
    Experiment(small(*changes)).run(tmp_path / "parts", resume=True)
    assert contents(tmp_path / "whole")[1:] == contents(tmp_path / "parts")[1:]
    names, others = (sorted(p.name for p in (tmp_path / n / "clients").iterdir()) for n in ("whole", "parts"))
    assert names == others
    for name in names:
        assert (tmp_path / "whole" / "clients" / name).read_bytes() == (
            tmp_path / "parts" / "clients" / name
        ).read_bytes()


def test_memory_is_bounded_by_the_clients_there_are(tmp_path):
    run = Experiment(small("method.name=scaffold", "rounds=8", "client_memory=disk", "checkpoint_every=1"))
    run.run(tmp_path / "run")
    files = list((tmp_path / "run" / "clients").iterdir())
    assert 0 < len(files) <= len(run.partition), "one file a client: older ones go with the next checkpoint"
    size = sum(run.model.get_parameter(name).numel() * 4 for name in run.plan.parameters)
    assert all(size <= file.stat().st_size <= size + 4096 for file in files)


def test_it_costs_what_it_sends():
    runs = {
        name: Experiment(small(f"method.name={name}", "training.momentum=0", "training.clip=0")).run()
        for name in ("fedavg", "scaffold")
    }
    for plain, line in zip(runs["fedavg"].metrics, runs["scaffold"].metrics, strict=True):
        assert line["bytes_down"] == 2 * plain["bytes_down"], "the model and c; the client has its c_i"
        assert line["bytes_up"] == 2 * plain["bytes_up"], "the model and the change of c_i"
    first = Experiment(small("method.name=scaffold", "method.options.option=I")).run().metrics[0]
    assert first["macs"] == 2 * runs["scaffold"].metrics[0]["macs"], "option I goes over all data once more"
