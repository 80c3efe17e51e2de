"""Models out of a run: they score what the run reported, with and without its data, at every width."""

import json
import shutil
import sys
from dataclasses import replace
from importlib import invalidate_caches

import pytest
import torch
from export_runs import finished
from torch import nn

import fedwidth
from fedwidth.config.read import read_config, read_settings
from fedwidth.data import from_tensors, load
from fedwidth.errors import CapacityError, OptionError, StateError
from fedwidth.experiment import Experiment
from fedwidth.export import export_run
from fedwidth.methods import fedrolex
from fedwidth.models.static_norm import norms_of
from fedwidth.run.checkpoint import NAME
from fedwidth.run.folder import CONFIG, MODELS
from fedwidth.run.weights.ready_models import read_models
from objective_runs import KINDS
from small_runs import small


def accuracy(model: nn.Module) -> float:
    """By hand: the share of test digits whose largest logit is their label."""
    data = load("digits")
    inputs, targets = data.batch(data.test, torch.arange(len(data.test)))
    with torch.no_grad():
        return float((model(inputs).argmax(-1) == targets).double().mean())


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("name", ["fedrolex", "heterofl", "fedminoccurances", "fedbrb"])
def test_a_loaded_model_scores_what_the_run_reported_at_its_width(name):
    folder = finished(f"method.name={name}")
    reported = summary(folder)
    assert accuracy(fedwidth.load(folder)) == reported["global_accuracy"]
    for capacity in (1, 0.5, 0.25):
        assert accuracy(fedwidth.load(folder, capacity)) == reported["capacity_accuracy"][f"{capacity:g}"]


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedavg, but stopped"])
def test_where_every_device_holds_the_whole_model_there_is_no_narrower_one(name, tmp_path):
    folder = finished(f"method.name={name.partition(',')[0]}")
    reported = summary(folder)
    assert accuracy(fedwidth.load(folder)) == accuracy(fedwidth.load(folder, 1)) == reported["global_accuracy"]
    if "stopped" in name:  # without its ready models, and without its data
        folder = shutil.copytree(folder, tmp_path / "run")
        (folder / MODELS).unlink()
    for capacity in ("1/4", [1, "1/2"]):
        with pytest.raises(OptionError, match="has no model of capacity .*every device holds the whole model; leave"):
            fedwidth.load(folder, capacity)


def test_where_every_device_holds_the_whole_model_none_is_chosen():
    folder = finished("method.name=fedavg", "data.validation=0.2")  # which measures several capacities, too
    with pytest.raises(OptionError, match="has chosen no capacities: with FedAvg every device holds the whole model"):
        fedwidth.load(folder, "chosen")


@pytest.mark.parametrize("name", ["heterofl", "fedrolex"])
def test_models_of_several_widths_answer_together_as_the_run_measured_it(name):
    folder = finished(f"method.name={name}")
    widths = [1, 0.5, 0.25]
    assert accuracy(fedwidth.load(folder, widths)) == summary(folder)["together_accuracy"]
    both = fedwidth.load(folder, ("1/2", "1/4"))
    inputs = load("digits").example(3)
    one, other = (fedwidth.load(folder, width)(inputs).softmax(-1) for width in ("1/2", "1/4"))
    torch.testing.assert_close(both(inputs).exp(), (one + other) / 2)


def test_the_widths_that_a_run_has_chosen(tmp_path):
    folder = finished("method.name=heterofl", "data.validation=0.2")
    found = summary(folder)
    assert accuracy(fedwidth.load(folder, "chosen")) == found["chosen_accuracy"]
    assert len(found["chosen_capacities"]) >= 1
    with pytest.raises(OptionError, match="has chosen no capacities: that takes a run to its end with data.validation"):
        fedwidth.load(finished("method.name=heterofl"), "chosen")
    with pytest.raises(StateError, match="holds no run"):
        fedwidth.load(tmp_path, "chosen")


@pytest.mark.parametrize("width", [1.0, 0.25])
def test_one_width_that_was_chosen_is_that_model(width, tmp_path):
    folder = shutil.copytree(finished("method.name=heterofl", "data.validation=0.2"), tmp_path / "run")
    (folder / "summary.json").write_text(json.dumps({**summary(folder), "chosen_capacities": [width]}))
    inputs = load("digits").example(3)
    alone = fedwidth.load(folder, width)(inputs)
    for capacity in ("chosen", [width]):
        torch.testing.assert_close(fedwidth.load(folder, capacity)(inputs), alone, rtol=0, atol=0)
    written, beside = export_run(folder, tmp_path / "a.safetensors", capacity="chosen")[:2]
    torch.testing.assert_close(fedwidth.load(written)(inputs), alone, rtol=0, atol=0)
    assert "together" not in beside.read_text()


def test_a_method_that_only_its_program_has_is_not_looked_for_where_nothing_was_chosen(tmp_path, monkeypatch):
    method = replace(fedwidth.method("fedrolex"), name="own", choose=lambda *given: fedrolex.METHOD.choose(*given))
    Experiment(small("rounds=1"), method=method).run(tmp_path / "run")
    monkeypatch.setattr("fedwidth.export.wanted.method_of", None)
    with pytest.raises(OptionError, match="has chosen no capacities: that takes a run to its end"):
        fedwidth.load(tmp_path / "run", "chosen")


@pytest.mark.parametrize("kind", ["regression", "multi-label", "segmentation"])
def test_a_task_without_classes_for_samples_chooses_no_widths_whatever_the_run_says(kind):
    folder = finished(*KINDS[kind], "data.validation=0.2", "evaluation.capacities=[1, 0.5]")
    said = (
        "has chosen no capacities: models answer together with probabilities of classes for each sample or word, which"
    )
    with pytest.raises(OptionError, match=f"{said} objective {kind} does not have$"):
        fedwidth.load(folder, "chosen")


def test_who_answers_together_is_named():
    with pytest.raises(OptionError, match="no capacity is given: name those whose models answer together"):
        fedwidth.load(finished(), [])
    with pytest.raises(CapacityError):
        fedwidth.load(finished(), [1, 2])


def test_what_has_no_classes_cannot_answer_together():
    folder = finished(*KINDS["regression"])
    with pytest.raises(
        OptionError, match="probabilities of classes for each sample or word, which those of .* do not give"
    ):
        fedwidth.load(folder, [1, 0.5])
    with pytest.raises(
        OptionError, match="only sub-models that are slices answer together, and FedHM hands out others"
    ):
        fedwidth.load(finished("method.name=fedhm"), [1, 0.5])


class Answers(nn.Sequential):
    """Answers with more than logits."""

    def forward(self, x):
        return {"logits": super().forward(x)}


def test_logits_are_taken_out_of_what_models_answer(tmp_path):
    torch.manual_seed(0)
    model = Answers(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    changes = ["method.name=heterofl", "rounds=2", "evaluation.capacities=[1, 0.25, 0.0625, 0.03125]", "engine=serial"]
    settings = read_settings("quickstart", changes).main
    Experiment(settings, model=model).run(tmp_path / "run")
    both = fedwidth.load(tmp_path / "run", [1, 0.25, 1 / 16, 1 / 32], model=model)  # the last two hold one unit each
    assert accuracy(both) == summary(tmp_path / "run")["together_accuracy"]


@pytest.mark.parametrize("name", ["fedhm", "flanc", "prism", "cocofl"])
def test_parts_that_are_no_slices_are_loaded_too(name):
    folder = finished(f"method.name={name}")
    reported = summary(folder)["capacity_accuracy"]
    model = fedwidth.load(folder, "1/4")
    assert accuracy(model) == reported["0.25"]
    assert all(parameter.requires_grad for parameter in model.parameters()), "also what clients froze"


def test_the_narrow_model_is_narrow_and_its_norms_have_statistics():
    model = fedwidth.load(finished(), "1/4")
    assert not model.training
    assert [norm.num_features for norm in norms_of(model)] == [2, 4]
    assert all(int(norm.num_batches_tracked) > 0 for norm in norms_of(model))


def test_a_run_that_ended_needs_no_data_to_be_loaded(tmp_path, monkeypatch):
    folder = finished()
    whole, narrow = fedwidth.load(folder), fedwidth.load(folder, 0.25)

    def gone(*_, **__):
        raise AssertionError("the data were read")

    monkeypatch.setattr("fedwidth.config.build.load", gone)
    for capacity, before in ((None, whole), (0.25, narrow)):
        again = fedwidth.load(folder, capacity).state_dict()
        assert all(torch.equal(again[name], tensor) for name, tensor in before.state_dict().items())


def test_an_older_folder_is_loaded_by_collecting_statistics_anew(tmp_path):
    folder = finished()
    for name in (CONFIG, NAME, "metrics.jsonl"):
        shutil.copy(folder / name, tmp_path / name)
    for capacity in (None, 0.25):
        stored, anew = fedwidth.load(folder, capacity), fedwidth.load(tmp_path, capacity)
        assert all(torch.equal(anew.state_dict()[n], t) for n, t in stored.state_dict().items())


def test_an_older_folder_without_its_data_is_one_clear_line(tmp_path):
    folder = finished()
    for name in (NAME, "metrics.jsonl"):
        shutil.copy(folder / name, tmp_path / name)
    text = (folder / CONFIG).read_text().replace('name = "digits"', 'name = "cifar10"')
    (tmp_path / CONFIG).write_text(text.replace('root = ""', f'root = "{tmp_path}"'))
    with pytest.raises(StateError, match="cannot be collected without its data"):
        fedwidth.load(tmp_path)


def test_a_width_the_run_did_not_keep_is_made_from_the_data():
    folder = finished()
    assert 0.75 not in read_models(folder, round=2).tensors
    model = fedwidth.load(folder, 0.75)
    assert [norm.num_features for norm in norms_of(model)] == [6, 12]
    assert accuracy(model) > 0.1


def test_models_are_kept_of_the_sizes_that_devices_have_and_of_no_others(tmp_path):
    mix = "devices.capacities='1:1 1/2:100 1/4:1'"  # of six clients all have 1/2
    Experiment(small("rounds=1", mix)).run(tmp_path / "dealt")
    assert read_models(tmp_path / "dealt", round=1).tensors.keys() == {1.0, 0.5}
    real = [(0, 0.125), (3, 0.25), (4, 0.25)]  # such devices say themselves what they can hold
    Experiment(small("rounds=1", mix)).run(tmp_path / "stated", cohort=lambda _: real)
    assert read_models(tmp_path / "stated", round=1).tensors.keys() == {1.0, 0.5, 0.25, 0.125}


def test_batch_statistics_are_replaced_by_collected_ones():
    folder = finished("evaluation.norm=batch")
    model = fedwidth.load(folder, 0.5)
    data = load("digits")
    inputs, _ = data.batch(data.test, torch.arange(40))
    with torch.no_grad():  # what a model answers about a sample does not depend on the others
        assert torch.allclose(model(inputs)[:1], model(inputs[:1]), atol=1e-5)


def test_a_model_that_was_given_in_python_is_given_again(tmp_path):
    x, y = torch.randn(60, 6), torch.arange(60) % 3
    own = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    settings = read_settings("rounds=1", ["data.clients=3", "devices.per_round=2", "engine=serial"]).main
    result = Experiment(settings, model=own, data=from_tensors(x, y, x, y)).run(tmp_path / "run")
    with pytest.raises(StateError, match=r"was given in Python: give it again, as fedwidth.load\(…, model=…\)"):
        fedwidth.load(tmp_path / "run")
    lines = (tmp_path / "run" / CONFIG).read_text().splitlines(keepends=True)
    (tmp_path / "run" / CONFIG).write_text("".join(line for line in lines if not line.startswith("given")))
    with pytest.raises(StateError, match="was given in Python, give it again"):  # a folder of an earlier version
        fedwidth.load(tmp_path / "run")
    again = fedwidth.load(tmp_path / "run", model=own)
    assert torch.equal(again(x), result.model(x))
    assert torch.equal(own[0].weight, own[0].weight)
    assert not torch.equal(own[0].weight, again[0].weight), "the model given is not changed"


@pytest.mark.parametrize("stored", [True, False])
def test_a_wrong_model_that_is_given_is_the_one_that_does_not_fit(stored, tmp_path):
    x, y = torch.randn(60, 6), torch.arange(60) % 3
    data = from_tensors(x, y, x, y)
    own = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    settings = read_settings("rounds=1", ["data.clients=3", "devices.per_round=2", "engine=serial"]).main
    Experiment(settings, model=own, data=data).run(tmp_path / "run")
    written = export_run(tmp_path / "run", tmp_path / "a.safetensors", model=own)[0]
    if not stored:
        (tmp_path / "run" / MODELS).unlink()
    wider = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
    with pytest.raises(StateError, match=r"^the model given, a Sequential, is not the one .* differ in '0\.weight'$"):
        fedwidth.load(tmp_path / "run", model=wider, data=data)
    with pytest.raises(StateError, match=r"^the model given, a Conv2d, does not fit the data of the run: the model"):
        fedwidth.load(written, model=nn.Conv2d(1, 3, 3))
    other = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(StateError, match=r"^the model given, a Sequential, does not fit .*: there '0.bias' is"):
        fedwidth.load(written, model=other)
    if stored:
        with pytest.raises(
            StateError, match=r"^the model given, a Conv2d, does not fit the data of the run: the model"
        ):
            fedwidth.load(tmp_path / "run", model=nn.Conv2d(1, 3, 3))


def test_what_cannot_be_loaded_is_one_clear_line(tmp_path):
    with pytest.raises(StateError, match="holds no run"):
        fedwidth.load(tmp_path)
    shutil.copy(finished() / CONFIG, tmp_path / CONFIG)
    with pytest.raises(StateError, match="holds no trained model"):
        fedwidth.load(tmp_path)
    with pytest.raises(CapacityError):
        fedwidth.load(finished(), 1.5)
    with pytest.raises((CapacityError, OptionError)):
        fedwidth.load(finished(), "wide")
    with pytest.raises(CapacityError, match="is a number such as 0.25 or 1/4, or 'chosen', not 'chozen'$"):
        fedwidth.load(finished(), "chozen")
    with pytest.raises(OptionError, match="model must be a torch.nn.Module, not a str"):
        fedwidth.load(finished(), model="x")
    damaged = tmp_path / "damaged"
    shutil.copytree(finished(), damaged)
    content = bytearray((damaged / MODELS).read_bytes())
    content[-1] ^= 1
    (damaged / MODELS).write_bytes(content)
    with pytest.raises(StateError, match=r"damaged.*resume the run \(--resume\), or delete the file, and it is made"):
        fedwidth.load(damaged)
    Experiment(read_config(damaged / CONFIG)).run(damaged, resume=True)
    assert (damaged / MODELS).read_bytes() == (finished() / MODELS).read_bytes()
    (damaged / MODELS).unlink()
    assert isinstance(fedwidth.load(damaged), torch.nn.Module)


@pytest.mark.parametrize("capacity", [None, "1/4", "chosen"])
def test_a_folder_of_several_runs_names_some_of_them(capacity, tmp_path):
    for seed in (10, 2, 1):
        (tmp_path / f"seed-{seed}").mkdir()
        shutil.copy(finished() / CONFIG, tmp_path / f"seed-{seed}")
    named = ", ".join(f"{tmp_path}/seed-{seed}" for seed in (1, 2, 10))
    with pytest.raises(StateError, match=f"{tmp_path} holds runs of its own: name one of {named}$"):
        fedwidth.load(tmp_path, capacity)
    shutil.copytree(tmp_path / "seed-1", tmp_path / "seed-11")
    with pytest.raises(StateError, match=f": name one of {named}, …$"):
        fedwidth.load(tmp_path, capacity)


def test_a_model_that_cannot_be_imported_says_where_to_run(tmp_path, monkeypatch):
    away, net = tmp_path / "away", "class Net(torch.nn.Sequential):\n    pass\n"
    away.mkdir()
    folder = shutil.copytree(finished(), tmp_path / "run")
    text = (folder / CONFIG).read_text().replace('name = "cnn"', 'name = "shapes_of_ours:Net"')
    (folder / CONFIG).write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the folder one is in is added
    monkeypatch.chdir(away)
    said = "model 'shapes_of_ours:Net': cannot import 'shapes_of_ours': No module named 'shapes_of_ours'; run in the"
    with pytest.raises(OptionError, match=f"^{said} folder that has shapes_of_ours.py, or put it on PYTHONPATH$"):
        fedwidth.load(folder)
    (away / "shapes_of_ours.py").write_text(f"import torch\nimport not_there_either\n\n\n{net}")
    invalidate_caches()
    with pytest.raises(OptionError, match=r"No module named 'not_there_either' \(shapes_of_ours.py, line 2\)$"):
        fedwidth.load(folder)


def test_resuming_a_run_that_has_ended_keeps_its_models(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished(), folder)
    before = (folder / MODELS).read_bytes()
    Experiment(read_config(folder / CONFIG)).run(folder, resume=True)
    assert (folder / MODELS).read_bytes() == before
