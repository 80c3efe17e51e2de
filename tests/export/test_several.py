"""Models of several runs that answer together: the mean of their probabilities, chosen by validation samples."""

import json

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.cli.entry import run_command
from fedwidth.config.build import load_data
from fedwidth.data import from_tensors
from fedwidth.errors import OptionError, StateError
from fedwidth.experiment import Experiment
from fedwidth.export.several import find_by_seed, measure_together
from objective_runs import KINDS
from small_runs import small


def trained(folder, *changes):
    run = Experiment(small("method.name=fedavg", "devices.capacities=a1", "data.validation=0.1", *changes))
    run.run(folder)
    return run


def test_two_models_answer_with_the_mean_of_their_probabilities(tmp_path):
    whole = trained(tmp_path / "whole", "rounds=5")
    trained(tmp_path / "half", "rounds=5", "model.width=1/2")
    places = [tmp_path / "whole", tmp_path / "half"]
    found = measure_together(places)
    test = whole.data.test
    inputs = whole.data.transform(test.inputs, False)
    with torch.no_grad():
        odds = [fedwidth.load(place)(inputs).softmax(-1) for place in places]
        both = fedwidth.load(places)(inputs)
        one = fedwidth.load(places[:1])(inputs)
    torch.testing.assert_close(both.exp(), (odds[0] + odds[1]) / 2)
    torch.testing.assert_close(one.softmax(-1), odds[0])
    right = [float((each.argmax(-1) == test.labels).double().mean()) for each in (*odds, both)]
    assert [*(each.test for each in found.each), found.all.test] == pytest.approx(right)
    assert right[0] != right[1], "two models that answer alike show nothing"
    assert found.widths == (1.0, 0.5)
    # Validation samples choose the best one, and the other one too if both are better than that.
    alone = [each.validation for each in found.each]
    wanted = found.all if found.all.validation > max(alone) else found.each[alone.index(max(alone))]
    assert found.chosen == wanted


def test_the_command_shows_every_model_and_those_together(tmp_path, capsys):
    for width in ("1", "1/2"):
        for seed in (1, 2):
            trained(tmp_path / width[-1] / f"seed-{seed}", "rounds=1", f"model.width={width}", f"seed={seed}")
    rows = [str(tmp_path / name) for name in ("1", "2")]
    assert run_command(["together", *rows, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["seed"] for each in told] == [1, 2]
    assert run_command(["together", *rows]) == 0
    said = capsys.readouterr().out
    mean = 50 * (told[0]["all"]["test"] + told[1]["all"]["test"])
    line = next(line for line in said.splitlines() if line.startswith("all together"))
    assert "1 + 1/2" in line
    assert f"{mean:.2f} ± " in line
    assert "Seeds: 1, 2." in said
    assert run_command(["together", rows[0], f"{rows[1]}/seed-1"]) == 2
    assert "has runs with the seeds 1, " in capsys.readouterr().err
    assert run_command(["together", rows[0]]) == 2
    assert "name at least two runs" in capsys.readouterr().err
    assert run_command(["together", str(tmp_path), rows[1]]) == 2
    assert "holds several runs of one seed" in capsys.readouterr().err


def test_test_samples_that_a_run_leaves_alone_are_left_alone(tmp_path, capsys):
    trained(tmp_path / "one", "rounds=1")
    trained(tmp_path / "other", "rounds=1", "model.width=1/2", "evaluation.test=false")
    places = [tmp_path / "one", tmp_path / "other"]
    assert measure_together(places).all.test is None
    assert run_command(["together", *map(str, places)]) == 0
    assert "│               –" in capsys.readouterr().out


def test_what_cannot_be_measured_is_said(tmp_path):
    with pytest.raises(StateError, match="holds no run"):
        find_by_seed([tmp_path / "nothing"])
    trained(tmp_path / "one", "rounds=1")
    (tmp_path / "one" / "summary.json").unlink()
    with pytest.raises(StateError, match="holds no finished run"):
        measure_together([tmp_path / "one"] * 2)
    Experiment(small(*KINDS["multi-label"], "data.partition=iid", "rounds=1", "data.validation=0.1")).run(
        tmp_path / "labels"
    )
    with pytest.raises(OptionError, match="probabilities of classes for each sample or word"):
        measure_together([tmp_path / "labels"] * 2)
    with pytest.raises(OptionError, match="which those of .*labels do not give"):
        fedwidth.load([tmp_path / "labels"] * 2)
    with pytest.raises(OptionError, match="no run is given"):
        fedwidth.load([])
    with pytest.raises(OptionError, match="as wholes: leave the capacity out"):
        fedwidth.load([tmp_path / "one"] * 2, 0.5)


def test_the_data_are_read_once_and_from_the_folder_of_the_first_run(tmp_path, monkeypatch):
    for name in ("one", "other"):
        trained(tmp_path / name, "rounds=1", f"data.root={tmp_path / name}")
    read = []
    monkeypatch.setattr("fedwidth.run.cache.load_data", lambda settings: read.append(settings) or load_data(settings))
    measure_together([tmp_path / "one", tmp_path / "other"])
    measure_together([tmp_path / "one", tmp_path / "other"], root="elsewhere")
    assert [settings.data.root for settings in read] == [str(tmp_path / "one"), "elsewhere"]


def test_runs_of_other_splits_or_data_do_not_answer_together(tmp_path):
    trained(tmp_path / "one", "rounds=1")
    trained(tmp_path / "other", "rounds=1", "seed=2")
    with pytest.raises(OptionError, match="one seed and one split"):
        measure_together([tmp_path / "one", tmp_path / "other"])
    inputs, labels = torch.randn(60, 8), torch.arange(60) % 3
    given = from_tensors(inputs, labels, inputs, labels)
    settings = small(
        "rounds=1", "method.name=fedavg", "devices.capacities=a1", "data.validation=0.1", "data.partition=iid"
    )
    Experiment(settings, model=nn.Linear(8, 3), data=given).run(tmp_path / "given")
    with pytest.raises(StateError, match="was given in Python"):
        measure_together([tmp_path / "given"] * 2)
    Experiment(small(*KINDS["token classification"], "data.partition=iid", "rounds=1")).run(tmp_path / "tags")
    with pytest.raises(OptionError, match=r"one and .*tags cannot answer together: their data differ in .*inputs"):
        fedwidth.load([tmp_path / "one", tmp_path / "tags"])


def test_without_validation_samples_nothing_is_chosen(tmp_path):
    trained(tmp_path / "one", "rounds=1", "data.validation=0")
    with pytest.raises(OptionError, match=r"data\.validation is 0"):
        measure_together([tmp_path / "one"] * 2)
