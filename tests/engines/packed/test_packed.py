"""Runs trained as one batch give what they give one by one."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedwidth.cli.entry import run_command
from fedwidth.config.read import read_settings
from fedwidth.core.submodel import state_of
from fedwidth.data import from_tensors
from fedwidth.engines.choice import choose_packed
from fedwidth.engines.packed import clients as packed_clients
from fedwidth.engines.packed import stacks as packed_stacks
from fedwidth.engines.stacks.pool import StackPool
from fedwidth.engines.stacks.stack import Stack
from fedwidth.errors import OptionError, UpdateError
from fedwidth.evaluation.packed import PackedEvaluation, stack_states
from fedwidth.experiment import Experiment, Stopped, build_model
from fedwidth.run.lockstep import run_in_lockstep
from fedwidth.run.packing import check_for_packing, group_for_packing
from fedwidth.training.server import Server
from small_runs import contents, same, small, write_recipe


def experiments(*changes_of_each):
    base = ["rounds=3", "evaluation.every=1", "model.name=mlp", "model.options={hidden=[16,8]}", "engine=vectorised"]
    base += ["training.lr=0.05", "data.clients=8", "devices.per_round=6"]
    found, data = [], None
    for changes in changes_of_each:
        settings = read_settings("quickstart", [*base, *changes]).main
        if data is None:
            digits = Experiment(settings).data
            splits = [digits.transform(s.inputs).double() for s in (digits.train, digits.test)]
            data = from_tensors(splits[0], digits.train.targets, splits[1], digits.test.targets, kind="images")
        found.append(Experiment(settings, model=build_model(settings, data).double(), data=data))
    return found


VARIANTS = (
    ["seed=1"],
    ["seed=2", "method.name=heterofl"],
    ["seed=3", "method.name=fedminoccurances", "data.partition=dirichlet", "data.partition_options={alpha=1.0}"],
    ["seed=1", "method.name=fedbrb", "training.lr=0.02"],
)


def test_packed_runs_equal_single_runs(tmp_path):
    single = [run.run() for run in experiments(*VARIANTS)]
    together = experiments(*VARIANTS)
    packed = run_in_lockstep(together, [tmp_path / str(number) for number in range(len(together))])
    for one, other in zip(single, packed, strict=True):
        worst = max(float((one.server.state[n] - other.server.state[n]).abs().max()) for n in one.server.state)
        assert worst < 1e-10
        assert one.summary["global_accuracy"] == other.summary["global_accuracy"]
        assert one.summary["capacity_accuracy"] == other.summary["capacity_accuracy"]
    assert (tmp_path / "2" / "summary.json").exists()


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


def test_no_memory_for_averaging_begins_the_round_again_with_fewer_stacks(monkeypatch):
    expected = run_in_lockstep(experiments(*VARIANTS))
    real, calls = packed_stacks.average_runs, []

    def average(*given):
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("no room")
        return real(*given)

    monkeypatch.setattr(
        StackPool, "_concurrent", property(lambda pool: pool.concurrent)
    )  # on the CPU there is one at a time
    monkeypatch.setattr(packed_stacks, "average_runs", average)
    with pytest.warns(UserWarning, match="the vectorised engine goes on with fewer stacks, 4 at a time"):
        found = run_in_lockstep(experiments(*VARIANTS))
    assert len(calls) == 4, "three rounds, one of them twice"
    assert all(same(one.server.state, other.server.state) for one, other in zip(expected, found, strict=True))


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
    strangers = experiments(["seed=1"]) + experiments(["seed=2"])
    with pytest.raises(OptionError, match="they do not share one data set in memory"):
        run_in_lockstep(strangers)


class Looks(nn.Sequential):
    """Looks at its values, which a stack of models has not one of."""

    def forward(self, x):
        y = super().forward(x)
        return y / 2 if torch.is_grad_enabled() and float(y.detach().sum()) > 1e9 else y


def test_a_model_that_cannot_be_stacked_is_refused():
    runs = experiments(["seed=1"], ["seed=2"])
    model = Looks(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)).double()
    own = [Experiment(run.settings, model=model, data=run.data) for run in runs]
    with pytest.raises(OptionError, match="cannot train as one batch: the model cannot be stacked"):
        run_in_lockstep(own)


def test_packed_runs_without_memory_go_on_with_smaller_stacks(monkeypatch):
    expected = run_in_lockstep(experiments(*VARIANTS[1:3]))
    make, trained, train = Stack.__init__, [], Stack.train

    def make_small(stack, *arguments, rows, **options):
        if rows > 2:
            raise torch.OutOfMemoryError("no room for three rows")
        make(stack, *arguments, rows=rows, **options)

    def count(stack, starts, clients):
        trained.append(len(starts))
        return train(stack, starts, clients)

    monkeypatch.setattr(Stack, "__init__", make_small)
    monkeypatch.setattr(Stack, "train", count)
    with pytest.warns(UserWarning, match="out of memory on cpu: the vectorised engine goes on with smaller stacks, "):
        found = run_in_lockstep(experiments(*VARIANTS[1:3]))
    assert max(trained) == 2
    assert sum(trained) == 3 * 6 * 2, "three rounds of six clients of two runs, each trained once"
    for one, other in zip(expected, found, strict=True):
        assert max(float((one.server.state[n] - other.server.state[n]).abs().max()) for n in one.server.state) < 1e-10
        assert [line["train_loss"] for line in one.metrics] == pytest.approx([m["train_loss"] for m in other.metrics])


def test_packed_runs_equal_single_runs_with_batch_norm():
    # Only clients with equal batches share a stack then, and states are evaluated one by one.
    changes = ["model.name=preresnet18", "model.options={}", "model.width=1/32", "rounds=2", "evaluation.every=2"]
    changes += ["data.clients=100", "devices.per_round=3", "devices.capacities=a1-b1", "training.lr=0.01"]
    variants = ([*changes, "seed=1"], [*changes, "seed=2", "method.name=heterofl"])
    single = [run.run() for run in experiments(*variants)]
    for one, other in zip(single, run_in_lockstep(experiments(*variants)), strict=True):
        assert max(float((one.server.state[n] - other.server.state[n]).abs().max()) for n in one.server.state) < 1e-9
        assert one.summary["global_accuracy"] == other.summary["global_accuracy"]


def test_equal_work_is_done_once(monkeypatch):
    # At full capacity every method is FedAvg; a window of half the layer moves by half of it in FedStack too.
    half = ["devices.capacities=0.5:1", "data.partition=random_labels", "data.partition_options={per_client=5}"]
    rolex = ["method.name=fedrolex", "method.options={stagger=true,step=0.5}"]
    variants = (
        ["devices.capacities=1:1", "method.name=fedcover"],
        ["devices.capacities=1:1", "method.name=feddropout"],
        ["devices.capacities=1:1", "method.name=feddropout", "seed=2"],
        [*half, "method.name=fedstack"],
        [*half, *rolex],
        [*half, "method.name=fedcover"],
    )
    rows, train = [], Stack.train
    monkeypatch.setattr(
        Stack, "train", lambda stack, starts, clients: rows.append(len(starts)) or train(stack, starts, clients)
    )
    packed = run_in_lockstep(experiments(*variants))
    assert sum(rows) == 3 * 6 * 4, "three rounds of six clients of four runs"
    first, same, other, stack, window, cover = (result.server.state for result in packed)
    assert (first is same, first is other, stack is window, stack is cover) == (True, False, True, False)
    monkeypatch.undo()
    alone = experiments(*variants)[1].run()
    assert all(torch.equal(alone.server.state[name], same[name]) for name in same)


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
    whole = run_in_lockstep(experiments(*VARIANTS))
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
    with pytest.raises(OptionError, match="the loss of FjORD may do something else at every step"):
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


def test_working_ahead_changes_no_bit_and_shuffles_once(monkeypatch):
    expected = run_in_lockstep(experiments(*VARIANTS))
    shuffled, hold, draw_order = [], StackPool.load_orders, packed_clients.draw_order

    def as_on_a_gpu(pool, *arguments):
        found = hold(pool, *arguments)
        pool._idle = True
        return found

    def order(*arguments):
        shuffled.append(arguments)
        return draw_order(*arguments)

    monkeypatch.setattr(packed_clients, "draw_order", order)
    run_in_lockstep(experiments(*VARIANTS))
    once = len(shuffled)
    monkeypatch.setattr(StackPool, "load_orders", as_on_a_gpu)
    found = run_in_lockstep(experiments(*VARIANTS))
    assert len(shuffled) == 2 * once
    assert all(same(one.server.state, other.server.state) for one, other in zip(expected, found, strict=True))


def test_auto_packs_large_steps_in_slots_on_a_gpu_and_stacks_otherwise(tmp_path):
    run, other = experiments(["engine=auto"], ["engine=auto", "seed=2"])
    large = replace(run.trainer.settings, training=replace(run.trainer.settings.training, batch_size=10**7))
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
