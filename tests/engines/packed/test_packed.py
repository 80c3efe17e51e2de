"""Runs trained as one batch give what they give one by one, and write it."""

import json
from dataclasses import replace
from functools import cache

import pytest
import torch
from packed_runs import VARIANTS, experiments
from torch import nn

from fedwidth.cli.entry import run_command
from fedwidth.config.read import read_settings
from fedwidth.core.submodel import state_of
from fedwidth.data import load
from fedwidth.engines.choice import choose_packed
from fedwidth.errors import OptionError, UpdateError
from fedwidth.evaluation.packed import PackedEvaluation, stack_states
from fedwidth.experiment import Experiment, Stopped
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.run.lockstep.packing import check_for_packing, group_for_packing
from fedwidth.training.server.state import Server
from small_runs import contents, same, small, write_recipe


@cache
def packed():
    """What the variants give as one batch."""
    return run_in_lockstep(experiments(*VARIANTS))


def test_packed_runs_equal_single_runs():
    single = [run.run() for run in experiments(*VARIANTS)]
    for one, other in zip(single, packed(), strict=True):
        worst = max(float((one.server.state[n] - other.server.state[n]).abs().max()) for n in one.server.state)
        assert worst < 1e-10
        assert one.summary["global_accuracy"] == other.summary["global_accuracy"]
        assert one.summary["capacity_accuracy"] == other.summary["capacity_accuracy"]


def test_validation_samples_are_measured_together_as_one_by_one():
    variants = (
        ["data.validation=0.1"],
        ["data.validation=0.1", "method.name=heterofl", "evaluation.test=false"],
        ["data.validation=0.2", "seed=2", "data.partition=random_labels"],
        ["data.partition=random_labels", "data.validation=0.2", "evaluation.test=false"],
        [],
    )
    names = ("global_accuracy", "validation_accuracy", "local_accuracy", "capacity_accuracy", "class_accuracy")
    single = [run.run() for run in experiments(*variants)]
    for one, other in zip(single, run_in_lockstep(experiments(*variants)), strict=True):
        assert one.summary.keys() == other.summary.keys()
        for line, packed in zip(one.metrics, other.metrics, strict=True):
            assert line.keys() == packed.keys()
            assert [line.get(name) for name in names] == [packed.get(name) for name in names]


def test_runs_of_different_length_do_not_wait_for_ever():
    runs = experiments(["rounds=1"], ["rounds=3", "seed=2"])
    results = run_in_lockstep(runs)
    assert [len(result.metrics) for result in results] == [1, 3]


def test_a_run_that_fails_fails_the_pack_with_its_error():
    runs = experiments(["seed=1"], ["seed=2", "training.lr=1e300"])
    with pytest.raises(
        UpdateError, match=r"^fedrolex with seed 2: client (.) sent a value .*round 0, client \1, capacity"
    ):
        run_in_lockstep(runs)


def test_runs_of_another_shape_are_refused():
    runs = experiments(["seed=1"], ["seed=2", "training.batch_size=8"])
    with pytest.raises(OptionError, match="cannot train as one batch: training.batch_size differs"):
        run_in_lockstep(runs)
    strangers = [Experiment(run.settings, data=load("digits")) for run in experiments(["seed=1"], ["seed=2"])]
    with pytest.raises(OptionError, match="they do not share one data set in memory"):
        run_in_lockstep(strangers)


class Looks(nn.Sequential):
    """Looks at its values, which a stack of models has not one of."""

    def forward(self, x):
        y = super().forward(x)
        return y / 2 if torch.is_grad_enabled() and float(y.detach().sum()) > 1e9 else y


def test_a_pack_of_stacks_takes_slices_alone():
    with pytest.raises(OptionError, match="cuts its stacks with one gather, and FedHM hands out no slices"):
        run_in_lockstep(experiments(["method.name=fedhm"], ["method.name=fedhm", "seed=2"]))


def test_a_model_that_cannot_be_stacked_is_refused():
    runs = experiments(["seed=1"], ["seed=2"])
    model = Looks(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)).double()
    own = [Experiment(run.settings, model=model, data=run.data) for run in runs]
    with pytest.raises(OptionError, match="cannot train as one batch: the model or its loss cannot be stacked"):
        run_in_lockstep(own)


def test_packed_runs_equal_single_runs_with_batch_norm():
    # Only clients with equal batches share a stack then, and states are evaluated one by one.
    changes = ["model.name=preresnet18", "model.options={}", "model.width=1/32", "rounds=2", "evaluation.every=2"]
    changes += ["data.clients=100", "devices.per_round=3", "devices.capacities=a1-b1", "training.lr=0.01"]
    changes += ["training.steps=2"]
    variants = ([*changes, "seed=1"], [*changes, "seed=2", "method.name=heterofl"])
    single = [run.run() for run in experiments(*variants)]
    for one, other in zip(single, run_in_lockstep(experiments(*variants)), strict=True):
        assert max(float((one.server.state[n] - other.server.state[n]).abs().max()) for n in one.server.state) < 1e-9
        assert one.summary["global_accuracy"] == other.summary["global_accuracy"]


def test_runs_that_do_the_same_end_with_one_state():
    # At full capacity every method is FedAvg.
    whole = ["devices.capacities=1:1", "method.name=fedcover"], ["devices.capacities=1:1", "method.name=feddropout"]
    variants = (*whole, [*whole[1], "seed=2"])
    first, twin, other = (result.server.state for result in run_in_lockstep(experiments(*variants)))
    assert (first is twin, first is other) == (True, False)
    alone = experiments(*variants)[1].run()
    assert same(dict(alone.server.state), dict(twin))


def test_what_each_run_writes_is_what_it_writes_alone(tmp_path):
    variants = ([*VARIANTS[0], "evaluation.every=2"], VARIANTS[2])
    for number, run in enumerate(experiments(*variants)):
        run.run(tmp_path / "alone" / str(number))
    run_in_lockstep(experiments(*variants), [tmp_path / "packed" / str(number) for number in range(2)])
    for number in ("0", "1"):
        folders = [tmp_path / how / number for how in ("alone", "packed")]
        assert {p.name for p in folders[0].iterdir()} == {p.name for p in folders[1].iterdir()}
        (summary, lines, _), (other_summary, other_lines, _) = map(contents, folders)
        assert other_lines == [close(line) for line in lines]
        assert close(summary) == other_summary
        texts = [json.loads((folder / "clients.json").read_text()) for folder in folders]
        assert texts[0] == texts[1]


def close(line):
    """The line, its numbers up to the order of sums."""
    return {key: pytest.approx(value, rel=1e-6) if isinstance(value, float) else value for key, value in line.items()}


def test_a_stopped_pack_goes_on_as_if_it_had_not_been_stopped(tmp_path):
    whole = packed()
    places = [tmp_path / str(number) for number in range(len(VARIANTS))]
    with pytest.raises(Stopped, match="after round 1 of 3"):
        run_in_lockstep(experiments(*VARIANTS), places, stop=lambda: True)
    again = run_in_lockstep(experiments(*VARIANTS), places, resume=True)
    for one, other in zip(whole, again, strict=True):
        assert all(torch.equal(one.server.state[name], other.server.state[name]) for name in one.server.state)
        assert [line["global_loss"] for line in one.metrics] == [line["global_loss"] for line in other.metrics]


@pytest.mark.parametrize("mask", ["none", "zero", "inf"])
@pytest.mark.parametrize("partition", ["labels", "random_labels"])
def test_stacked_evaluation_is_evaluation_one_by_one(mask, partition):
    changes = [f"training.mask={mask}", f"data.partition={partition}", "data.partition_options={per_client=3}"]
    runs = experiments([*changes, "seed=1"], [*changes, "seed=2"])
    first, second = runs
    runs[1] = Experiment(second.settings, model=second.model, data=first.data, partition=first.partition)
    servers = [Server(state_of(run.model)) for run in runs]
    judge = PackedEvaluation(runs[0].model, runs[0].data, mask=mask)
    states = stack_states([server.state for server in servers], {})
    expected = [run.evaluator.measure(server) for run, server in zip(runs, servers, strict=True)]
    for score, local, measured in zip(
        judge.scores(states, runs[0].data.test), judge.local(states, runs[0].partition), expected, strict=True
    ):
        assert score.value == measured.line["global_accuracy"]
        assert score.loss == pytest.approx(measured.line["global_loss"], rel=1e-9)
        assert torch.equal(local.values, measured.local.values)
        assert torch.equal(local.counted, measured.local.counted)


def test_engines_that_cannot_be_packed_are_refused():
    settings = read_settings("quickstart").main
    with pytest.raises(OptionError, match="need engine auto, vectorised or cuda, not serial"):
        check_for_packing(replace(settings, engine="serial"))
    with pytest.raises(OptionError, match="clients of FjORD draw a width at every step"):
        run_in_lockstep(experiments(["seed=1"], ["seed=2", "method.name=fjord"]))


def test_runs_are_grouped_by_length_capacities_and_way_of_training():
    def settings(*changes):
        return read_settings("quickstart", changes).main

    groups = group_for_packing(
        [
            settings("seed=1"),
            settings("devices.capacities=0.5:1"),
            settings("seed=2", "method.name=heterofl"),
            settings("training.batch_size=3"),
            settings("devices.capacities=0.5:1", "training.lr=0.3", "data.partition=iid"),
            settings("rounds=9"),
        ]
    )
    assert groups == [[0, 2], [1, 4], [3], [5]]


def test_the_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = write_recipe(tmp_path)
    given = [recipe, "--set", "engine=auto", "--set", "rounds=2"]
    assert run_command(["run", *given, "--packed"]) == 2
    assert "give --seeds" in capsys.readouterr().err
    assert run_command(["run", *given, "--packed", "--seeds", "1,2", "--out", "packed"]) == 0
    assert "2 runs as one batch, engine: vectorised" in capsys.readouterr().err
    plain = ["run", recipe, "--set", "engine=vectorised", "--set", "rounds=2", "--seeds", "1,2", "--out", "plain"]
    assert run_command(plain) == 0
    assert run_command(["run", *given, "--packed", "--seeds", "1,2", "--out", "packed", "--resume"]) == 0
    for seed in ("seed-1", "seed-2"):
        one, other = (contents(tmp_path / how / seed)[0] for how in ("packed", "plain"))
        assert close(one) == other
    over = ["--over", "training.batch_size=32,64"]
    assert run_command(["sweep", *given, *over, "--packed"]) == 2
    assert "--packed cannot train these runs as one batch: training.batch_size differs" in capsys.readouterr().err
    assert run_command(["sweep", *given, "--over", "method.name=fedrolex,heterofl", "--packed"]) == 0


def test_auto_packs_large_steps_in_slots_on_a_gpu_and_stacks_otherwise(tmp_path):
    run, other = experiments(["engine=auto"], ["engine=auto", "seed=2"])
    large = replace(run.trainer.settings, training=replace(run.trainer.settings.training, batch_size=10**8))
    on_gpu = replace(run.trainer, device=torch.device("cuda"))
    assert choose_packed(run.trainer) == "vectorised"
    assert choose_packed(on_gpu) == "vectorised"
    assert choose_packed(replace(on_gpu, settings=large)) == "cuda"
    assert choose_packed(replace(run.trainer, settings=large)) == "vectorised"
    run_in_lockstep([run, other], [tmp_path / "1", tmp_path / "2"])
    assert 'engine = "vectorised"' in (tmp_path / "1" / "config.toml").read_text()


@pytest.mark.parametrize("engine", ["vectorised", "cuda"])
def test_runs_with_excluded_devices_can_be_packed(engine):
    """In some rounds of such a run nobody trains: it goes on beside the others, as it would alone."""
    changes = ["rounds=6", "devices.per_round=2", f"engine={engine}", "evaluation.every=6"]
    settings = [small(*changes), small(*changes, "devices.excluded=[0.5, 0.25]"), small(*changes, "seed=2")]
    alone = [Experiment(each).run() for each in settings]
    assert any(not line["clients"] for line in alone[1].metrics), "some round is empty"
    packed = [Experiment(each) for each in settings]
    for other in packed[1:]:
        other.data = other.trainer.data = packed[0].data
    for one, together in zip(alone, run_in_lockstep(packed), strict=True):
        assert [line["clients"] for line in one.metrics] == [line["clients"] for line in together.metrics]
        for name, tensor in one.server.state.items():
            torch.testing.assert_close(together.server.state[name], tensor, rtol=0, atol=1e-6)


def test_clients_of_two_capacities_may_hold_the_same_part():
    # Of eight hidden units both an eighth and a sixteenth keep one.
    changes = ["method.name=heterofl", "devices.capacities=d1-e1", "model.options={hidden=[8]}", "engine=vectorised"]
    alone = Experiment(small(*changes, "training.scaler=false"))
    packed = [Experiment(small(*changes, "training.scaler=false", f"seed={seed}"), data=alone.data) for seed in (1, 2)]
    expected, found = alone.run().server.state, run_in_lockstep(packed)[0].server.state
    for name, tensor in expected.items():
        assert torch.allclose(tensor, found[name], rtol=1e-4, atol=1e-5), name
