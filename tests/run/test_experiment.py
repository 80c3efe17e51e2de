"""Whole runs: costs by hand, one seed one result, every method at full width, and what is refused."""

import json
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedwidth.config.read import read_settings
from fedwidth.data import from_tensors, load, make_partition
from fedwidth.errors import OptionError, PlanError, UpdateError
from fedwidth.experiment import Experiment, Stopped
from fedwidth.methods import methods
from fedwidth.settings import DataSettings, DeviceSettings, ServerSettings, Settings, TrainingSettings
from small_runs import TwoUnits, contents, ones, same, small

TINY_CNN = ("model.name=cnn", "model.options={widths=[4, 4]}")


@pytest.mark.parametrize("engine", ["serial", "cuda", "vectorised"])
def test_the_state_and_the_model_lie_in_memory_as_others_expect(engine):
    """Clients may train with channels last; files and `view` need the usual order."""
    result = Experiment(small(*TINY_CNN, "method.name=fedavg", f"engine={engine}")).run()
    for tensors in (result.server.state, result.model.state_dict()):
        assert all(tensor.is_contiguous() for tensor in tensors.values())


class TestOneSeedOneResult:
    def test_twice(self, tmp_path):
        for folder in ("one", "two"):
            Experiment(small(*TINY_CNN)).run(tmp_path / folder)
        assert contents(tmp_path / "one") == contents(tmp_path / "two")

    def test_twice_with_one_experiment(self):
        experiment = Experiment(small())
        one, two = experiment.run(), experiment.run()
        assert same(dict(one.server.state), dict(two.server.state))

    def test_another_seed_is_another_result(self):
        one, two = (Experiment(small(f"seed={seed}")).run() for seed in (1, 2))
        assert not same(dict(one.server.state), dict(two.server.state))

    def test_where_results_are_written_does_not_matter(self, tmp_path):
        written, kept = Experiment(small()).run(tmp_path / "run"), Experiment(small()).run()
        assert same(dict(written.server.state), dict(kept.server.state))

    def test_global_randomness_and_threads_have_no_part_in_it(self):
        threads = torch.get_num_threads()
        results = []
        try:
            for seed, number in ((0, 1), (9, 2)):
                torch.manual_seed(seed)
                torch.set_num_threads(number)
                before = torch.get_rng_state()
                results.append(dict(Experiment(small(*TINY_CNN)).run().server.state))
                assert torch.equal(before, torch.get_rng_state())
                assert torch.get_num_threads() == number
        finally:
            torch.set_num_threads(threads)
        assert same(*results)


def at_full_capacity(name):
    return Experiment(small("devices.capacities=a1", "rounds=2", *TINY_CNN, f"method.name={name}")).run()


@pytest.fixture(scope="module")
def fedavg():
    return at_full_capacity("fedavg")


class TestFullCapacity:
    @pytest.mark.parametrize(
        "name",
        [
            n
            for n, m in methods().items()
            if n != "fedavg" and m.local is None and not m.public and not m.adapters  # which train another model
        ],
    )
    def test_every_method_is_fedavg_bit_for_bit(self, name, fedavg):
        found = at_full_capacity(name)
        assert same(dict(found.server.state), dict(fedavg.server.state))
        assert found.summary["global_accuracy"] == fedavg.summary["global_accuracy"]
        assert found.summary["bytes_up"] == fedavg.summary["bytes_up"]

    def test_fedavg_trains_everything_whatever_the_devices(self, fedavg):
        settings = small("devices.capacities=a1-e9", "rounds=2", *TINY_CNN, "method.name=fedavg")
        assert same(dict(Experiment(settings).run().server.state), dict(fedavg.server.state))


class TestCosts:
    def test_bytes_and_operations_of_a_round_by_hand(self):
        # 64 inputs, h hidden units, 10 classes: 64 h + h + 10 h + 10 weights of 4 bytes, 74 h multiply-adds.
        # A step costs three forward passes of each sample.
        experiment = Experiment(small("devices.capacities=a1-b1-c1", "training.epochs=2"))
        for line in experiment.run().metrics:
            units = [8 * capacity for capacity in line["capacities"]]
            assert line["bytes_down"] == line["bytes_up"] == sum(4 * (75 * h + 10) for h in units)
            samples = [len(experiment.partition[client]) for client in line["clients"]]
            assert line["macs"] == sum(3 * 74 * h * 2 * n for h, n in zip(units, samples, strict=True))

    def test_buffers_travel_too(self):
        # conv 1 -> 4 of 3 x 3: 40 weights; norm 8; classifier 4 x 10 + 10. Buffers: 4 means, 4 variances, and a counter
        # of 8 bytes.
        settings = small("model.name=cnn", "model.options={widths=[4]}", "devices.capacities=a1", "rounds=1")
        line = Experiment(settings).run().metrics[0]
        assert line["bytes_up"] == 3 * (4 * (40 + 8 + 50) + 4 * 8 + 8)

    def test_steps_in_place_of_epochs(self):
        settings = small("training.steps=2", "training.batch_size=5", "devices.capacities=a1", "rounds=1")
        assert Experiment(settings).run().metrics[0]["macs"] == 3 * (3 * 74 * 8 * 10)

    def test_summary_adds_up(self):
        result = Experiment(small()).run()
        for key in ("bytes_up", "bytes_down", "macs"):
            assert result.summary[key] == sum(line[key] for line in result.metrics)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "deep" / "run"
    Experiment(small("evaluation.capacities=[0.5]", "name=a name")).run(folder)
    return folder


class TestWhatIsWritten:
    def test_contract_of_the_summary(self, place):
        summary = json.loads((place / "summary.json").read_text())
        contract = {"method", "rounds", "global_accuracy", "local_accuracy", "seconds", "seed", "version"}
        assert contract <= summary.keys()
        assert (summary["method"], summary["rounds"], summary["seed"]) == ("fedrolex", 3, 1)
        assert 0 <= summary["global_accuracy"] <= 1
        assert summary["best_global_accuracy"] >= summary["global_accuracy"]
        assert summary["local_quantiles"] == sorted(summary["local_quantiles"])

    def test_files(self, place):
        names = {path.name for path in place.iterdir()}
        assert names == {
            ".lock",
            "checkpoint.safetensors",
            "clients.json",
            "config.toml",
            "metrics.jsonl",
            "models.safetensors",
            "summary.json",
        }

    def test_one_line_a_round_evaluated_when_asked_and_at_the_end(self, place):
        lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        assert [line["round"] for line in lines] == [1, 2, 3]
        assert ["global_accuracy" in line for line in lines] == [False, True, True]
        assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)

    def test_config_gives_the_run_again(self, place, tmp_path):
        settings = read_settings(place / "config.toml").main
        assert settings == small("evaluation.capacities=[0.5]", "name=a name")
        Experiment(settings).run(tmp_path / "again")
        assert contents(tmp_path / "again") == contents(place)

    def test_clients(self, place):
        rows = json.loads((place / "clients.json").read_text())
        assert [row["client"] for row in rows] == list(range(6))
        assert {row["capacity"] for row in rows} == {1.0, 0.5, 0.25}
        assert all(len(row["labels"]) == 5 for row in rows)
        assert sum(row["samples"] for row in rows) == 1442
        summary = json.loads((place / "summary.json").read_text())
        accuracies = sorted(row["accuracy"] for row in rows)
        assert summary["local_quantiles"][0] == accuracies[0]
        assert summary["local_quantiles"][4] == accuracies[-1]

    def test_the_returned_model_is_the_final_one(self):
        experiment = Experiment(small(*TINY_CNN))
        result = experiment.run()
        inputs, targets = experiment.data.batch(experiment.data.test, torch.arange(355))
        accuracy = (result.model(inputs).argmax(1) == targets).double().mean().item()
        assert accuracy == pytest.approx(result.summary["global_accuracy"])

    def test_numbers_json_cannot_write_become_null(self):
        # The logit of label 1 is 2 * 3e38, which is infinite; training masks it, the global loss does not.
        model = TwoUnits()
        with torch.no_grad():
            model.b.weight.mul_(3e38)
        data, partition = ones()
        settings = Settings(rounds=1, devices=DeviceSettings("a1", per_round=1), training=TrainingSettings(lr=0.0))
        result = Experiment(settings, model=model, data=data, partition=partition).run()
        assert result.summary["global_loss"] is None
        json.dumps(result.summary, allow_nan=False)
        json.dumps(result.metrics, allow_nan=False)


class TestYourOwn:
    def settings(self, **changes):
        return Settings(rounds=2, devices=DeviceSettings("a1-b1", per_round=2), **changes)

    def data(self, number=40):
        x = torch.randn(number, 6, generator=torch.Generator().manual_seed(0))
        return from_tensors(x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long())

    def net(self, classes=2):
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, classes))

    def test_model_and_data(self):
        model = self.net()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        settings = self.settings(data=DataSettings(clients=4))
        result = Experiment(settings, model=model, data=self.data()).run()
        assert result.summary["rounds"] == 2
        assert same(before, model.state_dict()), "the given model must stay as it was"
        assert not same(before, result.model.state_dict())

    def test_the_same_model_can_start_several_runs(self):
        model = self.net()
        runs = [
            Experiment(self.settings(data=DataSettings(clients=4)), model=model, data=self.data()).run()
            for _ in range(2)
        ]
        assert same(dict(runs[0].server.state), dict(runs[1].server.state))

    def test_partition_may_have_more_clients_than_the_settings_say(self):
        data = self.data(300)
        settings = replace(self.settings(), devices=DeviceSettings("a1", per_round=120))
        partition = make_partition(data, "iid", 150, 1)
        result = Experiment(settings, model=self.net(), data=data, partition=partition).run()
        assert len(result.metrics[0]["clients"]) == 120

    def test_an_empty_looking_module_is_still_the_users(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))

            def __len__(self):
                return 0

            def forward(self, x):
                return self.layers(x)

        experiment = Experiment(self.settings(data=DataSettings(clients=4)), model=Net(), data=self.data())
        assert isinstance(experiment.model, Net)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            (Settings(training=TrainingSettings(optimiser="sdg")), "training.optimiser"),
            (Settings(training=TrainingSettings(batch_size=0)), "training.batch_size"),
            (Settings(rounds=0), "rounds"),
            (Settings(server=ServerSettings(lr="fast")), "server.lr"),
            (Settings(devices=DeviceSettings(per_round=101)), "devices.per_round"),
        ],
    )
    def test_settings_made_in_python_are_checked_too(self, settings, words):
        with pytest.raises(OptionError, match=words):
            Experiment(settings)

    def test_more_clients_a_round_than_there_are(self):
        data = self.data()
        with pytest.raises(OptionError, match="only 1 clients"):
            Experiment(self.settings(), model=self.net(), data=data, partition=make_partition(data, "iid", 1, 1))

    def test_a_model_for_other_classes_is_refused(self):
        with pytest.raises(PlanError, match=r"\[2, 5\].*2 classes"):
            Experiment(self.settings(data=DataSettings(clients=4)), model=self.net(5), data=self.data())

    def test_a_model_that_returns_several_things_must_say_which_counts(self):
        class Pair(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))

            def forward(self, x):
                return {"scores": self.net(x), "inputs": x}

        with pytest.raises(PlanError, match="the model returns scores, inputs: say which counts with objective.output"):
            Experiment(self.settings(data=DataSettings(clients=4)), model=Pair(), data=self.data())

    def test_resume_needs_a_folder(self):
        with pytest.raises(OptionError, match="without an output folder"):
            Experiment(small()).run(resume=True)


class TestStops:
    def test_stop_finishes_the_round_and_saves_it(self, tmp_path):
        done = []
        with pytest.raises(Stopped, match="round 2 of 3"):
            Experiment(small("checkpoint_every=3")).run(
                tmp_path / "run", on_round=lambda line: done.append(line["round"]), stop=lambda: len(done) == 1
            )
        assert done == [1, 2]
        assert not (tmp_path / "run" / "summary.json").exists()
        Experiment(small("checkpoint_every=3")).run(tmp_path / "run", resume=True)
        Experiment(small()).run(tmp_path / "whole")
        assert contents(tmp_path / "run") == contents(tmp_path / "whole")

    def test_a_stop_in_the_last_round_is_just_the_end(self):
        assert Experiment(small("rounds=1")).run(stop=lambda: True).summary["rounds"] == 1

    def test_an_exploding_client_is_named(self):
        with pytest.raises(UpdateError, match=r"client \d+ .*'.*weight' .*not finite"):
            Experiment(small("training.lr=1e30", "training.clip=0")).run()


def test_devices_are_fixed_or_drawn_anew():
    fixed, dynamic = (
        Experiment(small("rounds=8", "devices.per_round=6", f"devices.dynamic={dynamic}")).run().metrics
        for dynamic in ("false", "true")
    )

    def seen(metrics):
        found = {}
        for line in metrics:
            for client, capacity in zip(line["clients"], line["capacities"], strict=True):
                found.setdefault(client, set()).add(capacity)
        return found

    assert all(len(capacities) == 1 for capacities in seen(fixed).values())
    assert any(len(capacities) > 1 for capacities in seen(dynamic).values())


def test_the_server_may_hold_a_fraction_of_the_width():
    experiment = Experiment(small("model.width=0.5", "devices.capacities=a1"))
    assert experiment.model.hidden[1].out_features == 4
    assert experiment.run().summary["rounds"] == 3


def test_learning_rates_are_written_down():
    settings = small("training.schedule=multistep", "training.milestones=[1, 2]", "training.decay=0.5")
    assert [line["learning_rate"] for line in Experiment(settings).run().metrics] == [0.1, 0.05, 0.025]


def test_text_learns_and_is_evaluated_by_word():
    settings = small(
        "data.name=synthetic_text",
        "data.options={users=20, per_user=10, words=10, length=8}",
        "data.partition=natural",
        "data.partition_options={}",
        "data.clients=20",
        "devices.per_round=10",
        "devices.capacities=a1-b1",
        "model.name=transformer",
        "model.options={embedding=16, heads=2, head_size=4, hidden=16, layers=1, positions=8}",
        "training.optimiser=adam",
        "training.lr=0.01",
        "training.mask=none",
        "rounds=20",
    )
    result = Experiment(settings).run()
    # Every second word follows from the one before: far better than guessing among 10 words.
    assert result.summary["global_accuracy"] > 0.3
    assert result.summary["local_accuracy"] == pytest.approx(result.summary["global_accuracy"])


def test_data_sizes_are_part_of_a_checkpoints_identity(tmp_path):
    data = load("digits")
    fewer = replace(data, train=type(data.train)(data.train.inputs[:1000], data.train.targets[:1000]))
    Experiment(small(), data=data).run(tmp_path / "run")
    with pytest.raises(ValueError, match="another model"):
        Experiment(small(), data=fewer).run(tmp_path / "run", resume=True)


def test_excluded_capacities_take_part_in_no_round_and_a_round_may_be_empty():
    changes = ["rounds=6", "evaluation.every=6", "devices.capacities=a1-e1", "devices.per_round=2"]
    changes += ["devices.excluded=[0.0625]", "model.options={widths=[4,8]}"]
    settings = read_settings("quickstart", changes).main
    everybody = Experiment(read_settings("quickstart", [*changes[:4], "model.options={widths=[4,8]}"]).main)
    expected = [[c for c, capacity in everybody.cohort(round) if capacity == 1.0] for round in range(6)]
    result = Experiment(settings).run()
    assert [line["clients"] for line in result.metrics] == expected
    assert sorted({len(clients) for clients in expected}) == [0, 1, 2]  # all three happen with this seed
    empty = next(line for line in result.metrics if not line["clients"])
    assert empty["train_loss"] is None
    assert empty["bytes_up"] == 0


def test_a_result_is_printed_in_one_line():
    result = Experiment(small("rounds=2")).run()
    assert re.fullmatch(r"Result\(2 rounds, accuracy \d+\.\d\d %\)", repr(result))
    assert re.fullmatch(r"Server\(round=2, \d tensors\)", repr(result.server))
