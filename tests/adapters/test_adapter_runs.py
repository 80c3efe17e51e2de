"""Whole runs with adapters: plain federated LoRA, engines, resume, costs, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from typer.testing import CliRunner

import fedwidth
from fedwidth.cli.entry import app
from fedwidth.core.cost import cost
from fedwidth.errors import FedwidthError, FellBack, OptionError
from fedwidth.experiment import Experiment, Stopped
from fedwidth.export import export_run
from fedwidth.settings import (
    AdapterSettings,
    DataSettings,
    DeviceSettings,
    EvaluationSettings,
    LocalSettings,
    MethodSettings,
    ModelSettings,
    SecureSettings,
    ServerSettings,
    Settings,
    TrainingSettings,
)
from fedwidth.training.batches import batches, order_generator

PRESETS = ("fedit", "hetlora", "flexlora", "flora", "ffalora", "rolora")
CHOICES = ("fedrolex", "heterofl", "feddropout", "fjord", "fedcover", "fedstack", "fedprox", "scaffold")


def settings(method="fedrolex", *, mix="1:1 1/2:1 1/4:1 1/8:1", rounds=2, local="", engine="serial", **adapter):
    return Settings(
        rounds=rounds,
        engine=engine,
        workers=2,
        method=MethodSettings(method),
        local=LocalSettings(local),
        model=ModelSettings("mlp", {"hidden": [16, 12]}),
        adapter=AdapterSettings(**{"rank": 8, **adapter}),
        data=DataSettings("digits", clients=20),
        devices=DeviceSettings(mix, per_round=4),
        training=TrainingSettings(lr=0.5, momentum=0.0, weight_decay=0.0),
        server=ServerSettings(label_rows=False),
        evaluation=EvaluationSettings(every=rounds, local=False),
    )


def final(wanted: Settings, **given):
    experiment = Experiment(wanted, **given)
    return experiment, experiment.run()


def same(one, other) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_one_rank_for_all_is_plain_federated_lora():
    """FedIT by hand: every client trains A and B with PyTorch's own SGD, and the server takes the mean of each."""
    wanted = settings("fedrolex", mix="1:1", rounds=3)
    experiment, result = final(wanted)
    model = experiment.model
    state = {name: tensor.clone() for name, tensor in experiment.first_state.items()}
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(trained) == 4
    data, training = experiment.data, experiment.settings.training
    for round in range(3):
        found = []
        for client, _ in experiment.cohort(round):
            model.load_state_dict(state)
            optimiser = torch.optim.SGD([dict(model.named_parameters())[name] for name in trained], lr=0.5)
            samples = experiment.partition[client]
            for places in batches(torch.arange(len(samples)), training, order_generator(1, round, client)):
                inputs, targets = data.batch(data.train, samples[places], train=False)
                logits = model.train()(inputs)
                held = torch.zeros(10, dtype=torch.bool)
                held[experiment.partition.labels[client]] = True
                loss = functional.cross_entropy(logits.masked_fill(~held, 0.0), targets)
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], training.clip)
                optimiser.step()
            found.append({name: dict(model.named_parameters())[name].detach().clone() for name in trained})
        for name in trained:
            state[name] = torch.stack([own[name] for own in found]).mean(0)
    for name, tensor in state.items():
        torch.testing.assert_close(result.server.state[name], tensor, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(result.server.state[n], experiment.first_state[n]) for n in experiment.plan.untrained)
    assert same(result.server.state, final(settings("fedit", mix="1:1", rounds=3))[1].server.state)


@pytest.mark.parametrize("name", [*PRESETS, *CHOICES])
def test_methods_train_ranks_and_frozen_weights_stay_unless_the_rule_moves_them(name):
    experiment, result = final(settings(name))
    first, last, plan = experiment.first_state, result.server.state, experiment.plan
    assert set(plan.groups) == plan.rank_groups
    assert not experiment.settings.training.scaler  # activations are as wide as ever
    moved = {adapter.weight for adapter in plan.adapters} if name == "flora" else set()
    assert {name for name in plan.untrained if not torch.equal(first[name], last[name])} == moved
    assert not torch.equal(first[plan.adapters[0].up], last[plan.adapters[0].up]) or name == "flora"
    line = result.metrics[-1]
    assert line["adapters"]["effective_rank"] > 0
    if name in ("flora", "ffalora", "rolora"):
        assert line["adapters"]["error"] < 1e-5
    else:
        assert line["adapters"]["error"] > 1e-5
    if name == "ffalora":
        assert all(torch.equal(first[adapter.down], last[adapter.down]) for adapter in plan.adapters)


@pytest.mark.parametrize("rule", ["svd", "residual", "stack"])
def test_rules_go_with_any_choice_of_ranks(rule):
    _, result = final(settings("fedcover", average=rule))
    assert result.metrics[0]["adapters"]["error"] < (1.0 if rule == "svd" else 1e-5)


def test_a_rule_of_turns_goes_with_windows():
    experiment, result = final(settings("fedrolex", local="rolora"))
    assert experiment.method.title == "FedRolex with RoLoRA"
    assert result.metrics[-1]["adapters"]["error"] < 1e-6


def test_windows_that_do_not_overlap_are_averaged_exactly_in_a_run():
    _, result = final(settings("fedstack", mix="1/4:1"))  # four clients of two ranks of eight
    assert all(line["adapters"]["error"] <= 1e-6 for line in result.metrics)


@pytest.mark.parametrize("name", ["fedrolex", "flora", "rolora"])
def test_worker_processes_give_the_same_bits(name):
    assert same(final(settings(name))[1].server.state, final(settings(name, engine="processes"))[1].server.state)


@pytest.mark.parametrize("name", ["fedrolex", "flexlora", "fedit"])
def test_stacks_agree_up_to_rounding(name):
    one, other = (final(settings(name, engine=engine))[1].server.state for engine in ("serial", "vectorised"))
    for tensor in one:
        torch.testing.assert_close(one[tensor], other[tensor], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "why"), [("rolora", "let one factor rest"), ("scaffold", "is cut one by one")])
def test_stacks_say_why_they_cannot(name, why):
    with pytest.warns(FellBack, match=why):
        final(settings(name, rounds=1, engine="vectorised"))


@pytest.mark.parametrize("name", ["fedrolex", "flora", "rolora"])
def test_a_resumed_run_ends_with_the_same_bits(name, tmp_path):
    wanted = replace(settings(name, rounds=4), checkpoint_every=1)
    whole = Experiment(wanted).run().server.state
    stops = iter([False, True])
    with pytest.raises(Stopped):
        Experiment(wanted).run(tmp_path / "run", stop=lambda: next(stops))
    resumed = Experiment(wanted).run(tmp_path / "run", resume=True)
    assert same(whole, resumed.server.state)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]


def test_frozen_weights_are_in_no_round_and_ranks_are():
    """Layers 64-16 and 16-12 with rank 8: A and B have 8 (64 + 16) + 8 (16 + 12) = 864 numbers of 4 bytes."""
    _, result = final(settings("fedit", mix="1:1", rounds=1))
    assert result.metrics[0]["bytes_up"] == result.metrics[0]["bytes_down"] == 4 * 4 * 864
    _, result = final(settings("ffalora", mix="1:1", rounds=1))  # B alone: 8 (16 + 12)
    assert result.metrics[0]["bytes_up"] == result.metrics[0]["bytes_down"] == 4 * 4 * 224
    _, result = final(settings("rolora", mix="1:1", rounds=2))  # B up, then A; both down
    assert [line["bytes_up"] for line in result.metrics] == [4 * 4 * 224, 4 * 4 * 640]
    assert [line["bytes_down"] for line in result.metrics] == [4 * 4 * 864] * 2
    _, result = final(settings("flora", mix="1/8:1", rounds=1))  # rank 1, and the stack of four of them
    assert result.metrics[0]["bytes_up"] == 4 * 4 * 108
    assert result.metrics[0]["bytes_down"] == 4 * (4 * 108 + 4 * 4 * 108)


def test_the_cost_table_says_what_rank_does_not_save():
    adapted = fedwidth.adapt(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)), rank=8, targets=["0"])
    example = torch.zeros(2, 64)
    plan = fedwidth.trace(adapted, example, keep=["0.base_layer"])
    whole, one = cost(adapted, plan, example, [1, 1 / 8])
    assert (whole.trained_bytes, one.trained_bytes) == (4 * 8 * 96, 4 * 96)
    assert whole.frozen_bytes == one.frozen_bytes == 4 * (64 * 32 + 32 + 32 * 4 + 4)
    assert (whole.bytes_up, one.bytes_up) == (whole.trained_bytes, one.trained_bytes)
    assert whole.resent_bytes == one.resent_bytes == 0
    assert whole.activation_bytes - one.activation_bytes == 4 * 7  # of a sample: seven numbers between A and B
    both = fedwidth.trace(adapted, example)
    (half,) = cost(adapted, both, example, [1 / 2])
    assert half.resent_bytes == 4 * (64 * 16 + 16 + 16 * 4)  # slices may move on, so they are sent again


def test_widths_and_ranks_both_shrink_where_that_is_asked():
    experiment, result = final(settings("fedrolex", widths=True))
    assert experiment.plan.groups.keys() - experiment.plan.rank_groups
    assert result.metrics[-1]["adapters"]["error"] is None  # products of parts of layers have no mean


def test_a_model_that_was_adapted_in_python_is_trained_so():
    plain = Experiment(replace(settings("fedrolex"), adapter=AdapterSettings())).model
    adapted = fedwidth.adapt(plain, rank=4, train=["classifier.*"])
    experiment, result = final(replace(settings("fedrolex"), adapter=AdapterSettings()), model=adapted)
    assert set(experiment.plan.groups) == experiment.plan.rank_groups
    assert not torch.equal(experiment.first_state["classifier.weight"], result.server.state["classifier.weight"])


def test_secure_sums_of_ranks_give_what_plain_ones_do():
    plain = replace(settings("heterofl"), devices=DeviceSettings("1:1 1/2:1", per_round=12))
    hidden = replace(plain, secure=SecureSettings(enabled=True, min_clients=2))
    with pytest.warns(UserWarning, match="min_clients"):
        found = final(hidden)[1]
    assert found.metrics[-1]["adapters"]["error"] is None
    for name, tensor in final(plain)[1].server.state.items():
        torch.testing.assert_close(found.server.state[name], tensor, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (settings("fedbrb"), "chooses tensor by tensor"),
        (settings("fedhm"), "hands out no slices"),
        (settings("flora", outside="freeze", average="svd"), "ends its rounds in its own way"),
        (settings("fedrolex", average="svd", widths=True), "adapter.widths must be false"),
        (settings("fedrolex", rank=0, average="svd"), "the model has no adapters"),
        (settings("fedrolex", rank=0, targets="0"), "adapter.rank must be above 0"),
        (settings("fedrolex", targets="nothing"), "names no linear or convolution layer"),
        (replace(settings(average="stack"), server=ServerSettings(lr=0.5)), "lr must be 1"),
        (replace(settings(average="svd"), secure=SecureSettings(enabled=True)), "secure.enabled must be false"),
        (replace(settings(average="svd"), server=ServerSettings(robust="median")), "server.robust none"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_written(wanted, said, tmp_path):
    with pytest.raises((OptionError, FedwidthError), match=said):
        Experiment(wanted).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_is_loaded_and_exported_with_adapters_merged_or_apart(tmp_path):
    experiment, result = final_in(tmp_path / "run")
    inputs = experiment.data.example()
    wanted = result.model.eval()(inputs)
    torch.testing.assert_close(fedwidth.load(tmp_path / "run")(inputs), wanted)
    torch.testing.assert_close(fedwidth.load(tmp_path / "run", 1 / 4)(inputs), wanted, rtol=1e-4, atol=1e-5)
    for way, name in (("kept", "kept.safetensors"), ("merged", "merged.safetensors"), ("apart", "apart")):
        out = tmp_path / name
        said = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--adapters", way, "--out", str(out)])
        assert said.exit_code == 0, said.output
        if way == "apart":
            plain = Experiment(replace(experiment.settings, adapter=AdapterSettings())).model
            found = fedwidth.adapters.load(plain, out)
        else:
            found = fedwidth.load(out)
        assert any("lora_A" in name for name in found.state_dict()) == (way != "merged")
        torch.testing.assert_close(found.eval()(inputs), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "more"),
    [("flora", {"outside": "drop"}), ("fedit", {"average": "stack"}), ("fedrolex", {"average": "residual"})],
)
def test_adapters_whose_model_was_trained_too_are_not_written_apart_from_it(method, more, tmp_path):
    Experiment(settings(method, **more)).run(tmp_path / "run")
    with pytest.raises(OptionError, match="also trained what lies under its adapters .* export them merged"):
        export_run(tmp_path / "run", tmp_path / "apart", adapters="apart")
    assert not (tmp_path / "apart").exists()
    inputs = fedwidth.data.load("digits").example()
    merged, *_ = export_run(tmp_path / "run", tmp_path / "merged.safetensors", adapters="merged")
    wanted = fedwidth.load(tmp_path / "run")(inputs)
    found = fedwidth.load(merged)
    assert not any("lora_A" in name for name in found.state_dict())
    torch.testing.assert_close(found(inputs), wanted, rtol=1e-4, atol=1e-5)


def final_in(folder):
    experiment = Experiment(settings("fedrolex"))
    return experiment, experiment.run(folder)


def test_the_command_shows_what_ranks_cost():
    """Layers 784-128 and 128-10 of rank 4, the first adapted: 4 (784 + 128) numbers are trained, 101,770 are frozen."""
    given = ["cost", "mlp", "--rank", "4", "--target", "hidden.1", "--shape", "1x28x28", "--set", "hidden=[128]"]
    said = CliRunner().invoke(app, [*given, "--capacities", "1,1/4", "--json"])
    whole, one, _ = json.loads(said.output)["costs"]
    assert (whole["trained_bytes"], one["trained_bytes"]) == (4 * 4 * 912, 4 * 912)
    assert whole["frozen_bytes"] == one["frozen_bytes"] == 4 * 101_770
    assert (whole["bytes_up"], one["bytes_down"]) == (4 * 4 * 912, 4 * 912)
    said = CliRunner().invoke(app, given)
    assert "sent once" in said.output
    said = CliRunner().invoke(app, ["cost", "mlp", "--target", "hidden.1"])
    assert said.exit_code != 0
