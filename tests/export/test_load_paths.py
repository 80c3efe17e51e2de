"""Models that go another way by what they read are loaded and exported as they were trained."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import fedwidth
import own_paths
from fedwidth.config.read import read_config, read_settings
from fedwidth.errors import StateError
from fedwidth.experiment import Experiment
from fedwidth.export import export_run
from fedwidth.export.tensors import KEY
from fedwidth.run.checkpoint import SEAL
from fedwidth.run.folder import CONFIG, MODELS

RECIPE = """
rounds = 2
data = { name = "own_paths:lengths", clients = 4, partition = "iid" }
devices = { per_round = 2, capacities = "1:1 1/2:1 1/4:1" }
evaluation.capacities = [1, 0.5, 0.25]
engine = "serial"
"""
MODELS_OF_PATHS = ("Packed", "Route", "Stepped")


def trained(folder, name, *changes):
    data = own_paths.lengths()
    Experiment(read_settings(RECIPE, [f"model.name=own_paths:{name}", *changes]).main).run(folder)
    return folder, data, json.loads((folder / "summary.json").read_text())["capacity_accuracy"]


def accuracy(model, data):
    with torch.no_grad():
        return float((model(*data.test.inputs).argmax(-1) == data.test.targets).double().mean())


def rewrite(source, target, key, change):
    """The file with other facts."""
    with safe_open(source, "pt") as file:
        metadata = dict(file.metadata())
    facts = json.loads(metadata[key])
    change(facts)
    save_file(load_file(source), target, metadata={**metadata, key: json.dumps(facts)})


def without_plan(source, target, key):
    """The file as an older version wrote it, without a checksum of its facts, too."""
    rewrite(source, target, key, lambda facts: [facts.pop(name) for name in ("plan", SEAL)])


@pytest.mark.parametrize("name", MODELS_OF_PATHS)
@pytest.mark.parametrize("changes", [(), ("model.width=1/2", "devices.relative_to=server")])
def test_what_was_trained_is_loaded_and_exported(name, changes, tmp_path):
    run, data, reported = trained(tmp_path / "run", name, *changes)
    for capacity in (1, 0.5, 0.25):
        loaded = fedwidth.load(run, capacity)
        assert accuracy(loaded, data) == reported[f"{capacity:g}"]
        assert accuracy(fedwidth.load(run, capacity, data=data), data) == reported[f"{capacity:g}"]
        file, *_ = export_run(run, tmp_path / "file.safetensors", capacity=capacity, overwrite=True)
        opened = fedwidth.load(file)
        assert torch.equal(opened(*data.test.inputs), loaded(*data.test.inputs))


@pytest.mark.parametrize("name", MODELS_OF_PATHS)
def test_older_folders_take_the_data_that_are_given(name, tmp_path):
    run, data, reported = trained(tmp_path / "run", name)
    without_plan(run / MODELS, run / MODELS, "fedwidth")
    assert accuracy(fedwidth.load(run, 0.25, data=data), data) == reported["0.25"]
    file, *_ = export_run(run, tmp_path / "file.safetensors", capacity=0.25, data=data)
    assert accuracy(fedwidth.load(file), data) == reported["0.25"]


def test_models_that_an_older_version_sliced_otherwise_stay_as_they_were_trained(tmp_path):
    run, _, _ = trained(tmp_path / "run", "Route")
    without_plan(run / MODELS, run / MODELS, "fedwidth")

    def other(facts):
        for counts in facts["counts"].values():
            counts["older"] = 1

    rewrite(run / MODELS, run / MODELS, "fedwidth", other)
    before = (run / MODELS).read_bytes()
    with pytest.warns(UserWarning, match="an earlier version sliced otherwise, and stays as it is"):
        Experiment(read_config(run / CONFIG)).run(run, resume=True)
    assert (run / MODELS).read_bytes() == before


def test_an_older_folder_whose_path_is_not_found_again_is_to_be_resumed_or_asks_for_its_data(tmp_path):
    run, data, reported = trained(tmp_path / "run", "Route")
    export_run(run, tmp_path / "new.safetensors", capacity=0.25)
    without_plan(run / MODELS, run / MODELS, "fedwidth")
    with pytest.raises(StateError, match=r"'experts.0.bias' is \[4\], not \[16\].*resume the run \(--resume\).*data=…"):
        fedwidth.load(run, 0.25)
    without_plan(tmp_path / "new.safetensors", tmp_path / "old.safetensors", KEY)
    with pytest.raises(StateError, match=r"'experts.0.bias' is \[4\], not \[16\].*export it again"):
        fedwidth.load(tmp_path / "old.safetensors")
    Experiment(read_config(run / CONFIG)).run(run, resume=True)
    assert accuracy(fedwidth.load(run, 0.25), data) == reported["0.25"]


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts["plan"]["plan"]["Plan"].update(axes=5),
        lambda facts: facts["plan"].update(plan={"Plan": {}}),
        lambda facts: facts["counts"].update({"0.25": {"first": 5}}),
        lambda facts: facts.pop("counts"),
        lambda facts: facts.pop("round", facts.pop("rounds", None)),
    ],
)
def test_files_whose_facts_are_damaged_are_named_in_one_line_and_made_anew(change, tmp_path):
    run, data, reported = trained(tmp_path / "run", "Route")
    exported, *_ = export_run(run, tmp_path / "file.safetensors", capacity=1)
    for file, opened, key in ((run / MODELS, run, "fedwidth"), (exported, exported, KEY)):
        rewrite(file, file, key, change)
        with pytest.raises(StateError, match=f"^{file} is damaged: its checksum does not fit its content"):
            fedwidth.load(opened)
    Experiment(read_config(run / CONFIG)).run(run, resume=True)
    assert accuracy(fedwidth.load(run, 0.25), data) == reported["0.25"]


def test_a_model_whose_code_has_changed_is_traced_again(tmp_path, monkeypatch):
    run, data, reported = trained(tmp_path / "run", "Stepped")

    class Renamed(own_paths.Stepped):
        def __init__(self):
            super().__init__()
            self.size = self.width
            del self.width

        def __getattr__(self, name):
            return self.size if name == "width" else super().__getattr__(name)

    monkeypatch.setattr(own_paths, "Stepped", Renamed)
    assert accuracy(fedwidth.load(run, 0.25, data=data), data) == reported["0.25"]
