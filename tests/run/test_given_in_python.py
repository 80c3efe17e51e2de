"""What a run was given in Python is written down as such: nobody trains, resumes or loads something else instead."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.cli.entry import run_command
from fedwidth.config import read_settings
from fedwidth.data import Partition, Shares, from_tensors
from fedwidth.errors import OptionError, StateError
from fedwidth.experiment import Experiment, Stopped
from fedwidth.export import export_run
from fedwidth.methods import Method, fedavg
from fedwidth.objectives import OBJECTIVES
from fedwidth.report import write_report
from fedwidth.report.describe import describe
from fedwidth.report.entries import group_runs
from fedwidth.report.rebuild import ModelRebuilder
from fedwidth.report.runs import read_runs
from fedwidth.run.cache import Cache
from fedwidth.run.folder import CONFIG
from small_runs import contents, same, small

X, Y = torch.randn(60, 6, generator=torch.Generator().manual_seed(1)), torch.arange(60) % 3
DATA = from_tensors(X, Y, X, Y, name="mine")
SHARES = Shares.of((torch.arange(60) % 4).numpy(), 4)
SPLIT = Partition("by turns", SHARES, SHARES, DATA.train.targets)


class Net(nn.Sequential):
    """Of the shapes of the mlp that the settings name, which nothing but its name tells apart."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        super().__init__(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def settings(*changes):
    return small("checkpoint_every=1", *changes)


def experiment(*changes, **given):
    return Experiment(settings(*changes), **({"model": Net(), "data": DATA, "partition": SPLIT} | given))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "own"
    experiment().run(place)
    return place


def written(place):
    return tomllib.loads((place / CONFIG).read_text())


def test_config_says_what_was_given_and_how_many_clients_there_were(folder):
    found = written(folder)
    assert found["given"] == {"model": "Net", "data": "mine", "partition": "by turns"}
    assert settings().data.clients == 6
    assert found["data"]["clients"] == 4


def test_what_a_command_makes_as_the_settings_name_it_is_not_given(tmp_path):
    made = Cache().experiment(settings("rounds=1"))
    made.run(tmp_path)
    assert not made.given
    assert "given" not in written(tmp_path)
    assert read_settings(tmp_path / CONFIG).main == made.settings


@pytest.mark.parametrize("command", [["run"], ["sweep", "--over", "rounds=1,2"]])
def test_the_config_is_no_recipe(folder, command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command([*command, str(folder / CONFIG)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the model (Net), data (mine) and partition (by turns) of this run were given in Python" in line
    assert (
        "model.name=package.module:factory, data.name=package.module:function, data.partition=package.module:function"
        in line
    )
    assert not list(tmp_path.iterdir())


def test_it_is_a_recipe_once_everything_has_a_name(folder):
    changes = ["model.name=mlp", "data.name=digits"]
    with pytest.raises(OptionError, match=r"^the partition \(by turns\) of this run was given in Python"):
        read_settings(folder / CONFIG, changes)
    assert read_settings(folder / CONFIG, [*changes, "data.partition=iid"]).main.model.name == "mlp"


@pytest.mark.parametrize("name", ["method", "objective"])
def test_a_method_or_objective_that_only_the_program_has(name, tmp_path):
    own = Method("own", "Own", "mine", "-", choose=fedavg.choose, shared=lambda _: True)
    aim = replace(OBJECTIVES["classification"], name="own")
    Experiment(settings("rounds=1"), **{name: own if name == "method" else aim}).run(tmp_path)
    assert written(tmp_path)["given"] == {name: "own"}
    assert write_report([tmp_path], tmp_path / "report.html").exists()
    message = rf"the {name} \(own\) of this run was given in Python.*{name}.name=package.module:{name.upper()}"
    with pytest.raises(OptionError, match=message):
        read_settings(tmp_path / CONFIG)


def test_it_is_resumed_to_the_same_bits_with_what_it_was_given(folder, tmp_path):
    place = tmp_path / "run"
    with pytest.raises(Stopped):
        experiment().run(place, stop=lambda: True)
    with pytest.raises(
        StateError, match=r"the model \(Net\) of this run was given in Python; .* Experiment\(…, model=…"
    ):
        Experiment(settings(), data=DATA, partition=SPLIT).run(place, resume=True)
    experiment().run(place, resume=True)
    assert contents(place) == contents(folder)


def test_a_folder_of_an_earlier_version_does_not_say_it_and_is_resumed_and_loaded(folder, tmp_path):
    place = tmp_path / "run"
    with pytest.raises(Stopped):
        experiment().run(place, stop=lambda: True)
    lines = (place / CONFIG).read_text().splitlines(keepends=True)
    (place / CONFIG).write_text("".join(line for line in lines if not line.startswith("given = ")))
    result = experiment().run(place, resume=True)
    assert contents(place) == contents(folder)
    assert torch.equal(fedwidth.load(place, model=Net())(X), result.model(X))


def test_it_is_loaded_and_exported_with_its_model_alone(folder, tmp_path, capsys):
    out = tmp_path / "net.safetensors"
    assert run_command(["export", str(folder), "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"the model of {folder} (Net) was given in Python" in line
    assert "fedwidth.load(…, model=…), or fedwidth.export.export_run(…, model=…)" in line
    assert out in export_run(folder, out, model=Net())
    assert "`Net`" in out.with_name("net.safetensors.md").read_text()
    with pytest.raises(StateError, match=r"net.safetensors \(Net\) was given in Python"):
        fedwidth.load(out)
    whole, opened = fedwidth.load(folder, model=Net()), fedwidth.load(out, model=Net())
    assert same(whole.state_dict(), opened.state_dict())


def test_a_report_names_it_and_does_not_build_another(folder):
    told = describe(group_runs(read_runs([folder])))
    entry, run = told["entries"][0], told["runs"][0]
    assert [entry[name] for name in ("model", "data", "partition", "clients")] == ["Net", "mine", "by turns", 4]
    assert run["command"].startswith("# the model (Net), data (mine) and partition (by turns) of this run were given")
    assert "were given in Python, and a report does not" in ModelRebuilder().rebuild(read_runs([folder])[0])
