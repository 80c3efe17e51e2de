"""Models of several runs that answer together: the mean of their probabilities, chosen by validation samples."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fedwidth
from fedwidth.cli.entry import run_command
from fedwidth.config.build import load_data, split_data
from fedwidth.data import Transform, from_tensors, load
from fedwidth.errors import OptionError, StateError
from fedwidth.evaluation.scores import choose_by_score
from fedwidth.experiment import Experiment
from fedwidth.export.run import export_run
from fedwidth.export.several import measure_together
from fedwidth.objectives import CLASSIFICATION
from fedwidth.objectives.metric import Measure
from objective_runs import KINDS
from small_runs import small


def trained(folder, *changes):
    run = Experiment(small("method.name=fedavg", "devices.capacities=a1", "data.validation=0.1", *changes))
    run.run(folder)
    return run


def measure(*folders, **more):
    (found,) = measure_together(folders, **more).values()
    return found


def test_two_models_answer_with_the_mean_of_their_probabilities(tmp_path):
    whole = trained(tmp_path / "whole", "rounds=5")
    trained(tmp_path / "half", "rounds=5", "model.width=1/2")
    places = [tmp_path / "whole", tmp_path / "half"]
    found = measure(*places)
    test = whole.data.test
    inputs = whole.data.transform(test.inputs, False)
    with torch.no_grad():
        odds = [fedwidth.load(place)(inputs).softmax(-1) for place in places]
        both = fedwidth.load(place for place in places)(inputs)
        one = fedwidth.load(places[:1])(inputs)
    torch.testing.assert_close(both.exp(), (odds[0] + odds[1]) / 2)
    torch.testing.assert_close(one.softmax(-1), odds[0])
    right = [float((each.argmax(-1) == test.labels).double().mean()) for each in (*odds, both)]
    assert [*(each.test for each in found.each), found.all.test] == pytest.approx(right)
    assert right[0] != right[1], "two models that answer alike show nothing"
    assert found.all.widths == (1.0, 0.5)
    assert found.all.runs == tuple(map(str, places))


def test_the_models_of_several_runs_are_one_program(tmp_path, capsys):
    places = [tmp_path / "whole", tmp_path / "half"]
    run = trained(places[0], "rounds=2")
    trained(places[1], "rounds=2", "model.width=1/2")
    out = tmp_path / "both.pt2"
    assert run_command(["export", *map(str, places), "--format", "torch", "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(out), f"{out}.md"]
    program = torch.export.load(out).module()
    inputs = run.data.transform(run.data.test.inputs[:7], False)
    torch.testing.assert_close(program(inputs), fedwidth.load(places)(inputs))
    card = (tmp_path / "both.pt2.md").read_text()
    (test,) = (each.all.test for each in measure_together(places).values())
    assert card.startswith("# 2 models, one of each run, that answer together\n")
    assert f"| quality | accuracy {100 * test:.2f} % (measured on the test set when it was exported) |" in card
    cells = [line.strip("| ").split(" | ") for line in card.splitlines()[4:] if line.startswith("|")]
    rows = dict(cells)
    assert [rows["1: run"], rows["2: run"]] == [f"`{tmp_path.name}/{name}`" for name in ("whole", "half")]
    assert "1: of full width" not in rows
    assert rows["2: of full width"].startswith("1/2, ")
    sizes = [sum(tensor.numel() for tensor in fedwidth.load(place).parameters()) for place in places]
    assert rows["parameters"] == f"{sum(sizes):,}"
    export_run(iter(places[:1]), tmp_path / "one.safetensors")
    torch.testing.assert_close(fedwidth.load(tmp_path / "one.safetensors")(inputs), fedwidth.load(places[0])(inputs))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--format", "safetensors"], "safetensors holds the weights of one model"),
        (["--format", "torch", "--capacity", "1/2"], "answer together as wholes: leave the capacity out"),
        (["--format", "executorch", "--training"], "a program that trains holds one model"),
        (["--adapters", "apart"], "adapters apart from their model are those of one run"),
    ],
)
def test_what_several_runs_cannot_be_exported_as(tmp_path, capsys, more, said):
    for name in ("a", "b"):
        trained(tmp_path / name, "rounds=1")
    before = sorted(tmp_path.rglob("*"))
    args = ["export", str(tmp_path / "a"), str(tmp_path / "b"), *more, "--out", str(tmp_path / "out")]
    assert run_command(args) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert sorted(tmp_path.rglob("*")) == before


def quality(runs, out, **more):
    """The card's row of quality."""
    export_run(runs, out, form="torch", overwrite=True, **more)
    (row,) = (line for line in Path(f"{out}.md").read_text().splitlines() if line.startswith("| quality |"))
    return row


def test_test_samples_that_a_run_leaves_alone_are_not_measured_for_a_card(tmp_path):
    trained(tmp_path / "a", "rounds=1", "evaluation.test=false")
    trained(tmp_path / "b", "rounds=1")
    validated = json.loads((tmp_path / "a" / "summary.json").read_text())["validation_accuracy"]
    reported = f"| quality | accuracy {100 * validated:.2f} % (as the run reported, on validation samples) |"
    assert quality([tmp_path / "a"], tmp_path / "model.pt2") == reported
    both = "| quality | not measured (nobody measured them together, and test samples are left alone"
    assert quality([tmp_path / "b", tmp_path / "a"], tmp_path / "model.pt2").startswith(both)


def own_runs(tmp_path, **scales):
    """Runs on data given in Python whose labels are reversed, each with a scale of its own: their folders, the data."""
    digits, found = load("digits"), {}
    for name, scale in scales.items():
        splits = [(split.inputs, 9 - split.labels) for split in (digits.train, digits.test)]
        found[name] = from_tensors(*splits[0], *splits[1], name="mine", transform=Transform(scale=scale))
        Experiment(small("method.name=fedavg", "rounds=3", "devices.capacities=a1"), data=found[name]).run(
            tmp_path / name
        )
    return [tmp_path / name for name in scales], next(iter(found.values()))


def test_runs_on_data_given_in_python_are_measured_on_these_or_not_at_all(tmp_path):
    folders, data = own_runs(tmp_path, a=1.0, b=1.0)
    folders[1].rename(tmp_path / "c")
    Experiment(small("method.name=fedavg", "rounds=2", "devices.capacities=a1"), data=data).run(folders[1])
    assert (
        quality(folders, tmp_path / "m.pt2")
        == "| quality | not measured (nobody measured them together, and the data are not here) |"
    )
    inputs = data.transform(data.test.inputs, False)
    with torch.no_grad():
        right = (fedwidth.load(folders)(inputs).argmax(-1) == data.test.labels).double().mean().item()
    measured = f"| quality | accuracy {100 * right:.2f} % (measured on the test set when it was exported) |"
    assert quality(folders, tmp_path / "m.pt2", data=data) == measured


def test_models_of_other_inputs_or_objectives_and_of_one_run_do_not_answer_together(tmp_path):
    folders, data = own_runs(tmp_path, a=1.0, b=2.0)
    with pytest.raises(OptionError, match=r"cannot answer together: their data differ in transform"):
        fedwidth.load(folders)
    with pytest.raises(OptionError, match=r"a run is named twice: name each run once"):
        fedwidth.load([folders[0], tmp_path / "b" / ".." / "a"])
    changes = ("method.name=fedavg", "rounds=1", "devices.capacities=a1", "objective.name=classification")
    Experiment(small(*changes), data=data).run(tmp_path / "named")
    with pytest.raises(OptionError, match=r'objective\.name of the first is "auto", of the second "classification"'):
        fedwidth.load([folders[0], tmp_path / "named"], data=data)


def test_a_single_run_in_a_list_may_be_narrower(tmp_path):
    Experiment(small("rounds=1", "evaluation.capacities=[0.5]")).run(tmp_path / "a")
    narrow = fedwidth.load([tmp_path / "a"], 0.5)
    assert [t.shape for t in narrow.parameters()] == [t.shape for t in fedwidth.load(tmp_path / "a", 0.5).parameters()]


@pytest.mark.parametrize(("higher", "chosen"), [(True, [1]), (False, [0])])
def test_the_better_one_is_chosen_also_where_lower_is_better(higher, chosen):
    """Of two models one is right of all ten samples and one of none; together they are right of five."""
    split = replace(load("digits").test, inputs=torch.zeros(10, 1), targets=torch.zeros(10, dtype=torch.long))
    wrong, right = torch.tensor([[0.0, 9.0]] * 10), torch.tensor([[9.0, 0.0]] * 10)
    metric = replace(CLASSIFICATION.metric, measure=Measure("score", "score", higher_is_better=higher))
    assert choose_by_score([wrong, right], metric, split) == chosen


def test_the_command_shows_every_model_and_those_together(tmp_path, capsys):
    for width in ("1", "1/2"):
        for seed in (1, 2):
            trained(tmp_path / width[-1] / f"seed-{seed}", "rounds=1", f"model.width={width}", f"seed={seed}")
    trained(tmp_path / "1" / "compare" / "seed-1", "rounds=1")  # what the row is compared with is no seed of it
    rows = [str(tmp_path / name) for name in ("1", "2")]
    assert run_command(["together", *rows, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["seed"] for each in told] == [1, 2]
    assert [each["all"]["runs"] for each in told] == [[f"{row}/seed-{seed}" for row in rows] for seed in (1, 2)]
    assert run_command(["together", *rows]) == 0
    said = capsys.readouterr().out
    mean = 50 * (told[0]["all"]["test"] + told[1]["all"]["test"])
    line = next(line for line in said.splitlines() if line.startswith("all together"))
    assert "1 + 1/2" in line
    assert f"{mean:.2f} ± " in line
    assert "Seeds: 1, 2." in said
    assert f"of seed 2 chose fedwidth.load({json.dumps(told[1]['chosen']['runs'])})." in said


def test_test_samples_that_a_run_leaves_alone_are_left_alone(tmp_path):
    trained(tmp_path / "one", "rounds=1")
    trained(tmp_path / "other", "rounds=1", "model.width=1/2", "evaluation.test=false")
    found = measure(tmp_path / "one", tmp_path / "other")
    assert [each.test for each in (*found.each, found.all, found.chosen)] == [None] * 4
    assert run_command(["together", str(tmp_path / "one"), str(tmp_path / "other")]) == 0


def refused(capsys, *arguments):
    assert run_command(["together", *map(str, arguments)]) == 2
    found = capsys.readouterr().err
    assert found.count("\n") == 1, "one line"
    return found


def test_what_cannot_be_measured_is_said_in_one_line(tmp_path, capsys):
    trained(tmp_path / "one", "rounds=1")
    for width in ("1", "1/2"):
        trained(tmp_path / "row" / width[-1] / "seed-1", "rounds=1", f"model.width={width}")
    assert "name at least two runs, each once" in refused(capsys, tmp_path / "one")
    assert "name at least two runs, each once" in refused(capsys, tmp_path / "one", tmp_path / "row" / ".." / "one")
    assert "holds no run" in refused(capsys, tmp_path / "one", tmp_path / "nothing")
    assert "holds runs of its own: name one of" in refused(capsys, tmp_path / "row", tmp_path / "one")
    trained(tmp_path / "row" / "1" / "seed-2", "rounds=1", "seed=2")
    said = refused(capsys, tmp_path / "row" / "1", tmp_path / "row" / "2")
    assert "2 has runs with the seeds 1, " in said
    assert "with 1, 2" in said
    trained(tmp_path / "split", "rounds=1", "data.validation=0.2")
    split = refused(capsys, tmp_path / "one", tmp_path / "split")
    assert "cannot answer together: data.validation of the first is 0.1, of the second 0.2" in split
    trained(tmp_path / "none held", "rounds=1", "data.validation=0")
    assert "none held is 0" in refused(capsys, tmp_path / "none held", tmp_path / "one")
    (tmp_path / "one" / "summary.json").unlink()
    assert "one holds no finished run" in refused(capsys, tmp_path / "one", tmp_path / "row" / "1" / "seed-1")


def test_where_data_are_read_is_no_part_of_the_split(tmp_path, monkeypatch):
    trained(tmp_path / "one", "rounds=1", f"data.root={tmp_path / 'one'}")
    trained(tmp_path / "other", "rounds=1", f"data.root={tmp_path / 'other'}", "model.width=1/2")
    read = []
    monkeypatch.setattr("fedwidth.run.cache.load_data", lambda settings: read.append(settings) or load_data(settings))
    measure(tmp_path / "one", tmp_path / "other")
    measure(tmp_path / "one", tmp_path / "other", root="elsewhere")
    assert [settings.data.root for settings in read] == [str(tmp_path / "one"), "elsewhere"]


def test_data_of_another_shape_than_the_runs_are_refused(tmp_path, monkeypatch):
    for name, width in (("one", "1"), ("other", "1/2")):
        trained(tmp_path / name, "rounds=1", f"model.width={width}")
    digits = load("digits")
    wider = replace(digits, train=replace(digits.train, inputs=torch.zeros(len(digits.train), 1, 9, 9)))
    monkeypatch.setattr("fedwidth.run.cache.load_data", lambda _: wider)
    with pytest.raises(OptionError, match="the data that were found are not those of .*one: they differ in inputs"):
        measure(tmp_path / "one", tmp_path / "other")


def test_what_was_given_in_python_is_left_to_python(tmp_path):
    """A split of one's own above all: its validation samples are not those that the settings would hold out."""
    trained(tmp_path / "one", "rounds=1")
    settings = small("rounds=1", "method.name=fedavg", "devices.capacities=a1", "data.validation=0.1")
    other = split_data(replace(settings, seed=99), load("digits"))
    Experiment(settings, partition=other).run(tmp_path / "split")
    with pytest.raises(StateError, match="the partition .* were? given in Python|was given in Python"):
        measure(tmp_path / "split", tmp_path / "one")


def test_models_that_cannot_answer_together_are_not_loaded(tmp_path):
    trained(tmp_path / "one", "rounds=1")
    Experiment(small(*KINDS["multi-label"], "data.partition=iid", "rounds=1")).run(tmp_path / "labels")
    Experiment(small(*KINDS["token classification"], "data.partition=iid", "rounds=1")).run(tmp_path / "tags")
    for wrong, words in (
        ([], "no run is given"),
        ([None], "several are a list of those"),
        (5, "several are a list of those"),
        ([tmp_path / "labels"] * 2, "which those of .*labels do not give"),
        ([tmp_path / "one", tmp_path / "tags"], r"data\.name of the first is \"digits\""),
    ):
        with pytest.raises(OptionError, match=words):
            fedwidth.load(wrong)
    with pytest.raises(OptionError, match="as wholes: leave the capacity out"):
        fedwidth.load([tmp_path / "one"] * 2, 0.5)
    assert isinstance(fedwidth.load([tmp_path / "labels"]), nn.Module), "one by itself is that model"
    with pytest.raises(OptionError, match="only models that give one class for each sample"):
        measure_together(_two(tmp_path, *KINDS["token classification"], "data.partition=iid", "data.validation=0.1"))


def test_data_given_in_python_must_fit_all_models(tmp_path):
    inputs, labels = torch.randn(60, 8), torch.arange(60) % 3
    given = from_tensors(inputs, labels, inputs, labels)
    settings = small("rounds=1", "method.name=fedavg", "devices.capacities=a1", "data.partition=iid")
    for seed in (1, 2):
        Experiment(replace(settings, seed=seed), model=nn.Linear(8, 3), data=given).run(tmp_path / str(seed))
    both = fedwidth.load([tmp_path / "1", tmp_path / "2"], model=nn.Linear(8, 3), data=given)
    torch.testing.assert_close(both(inputs).exp().sum(-1), torch.ones(60))


def _two(folder: Path, *changes):
    for seed, width in (("1", "1"), ("1", "1/2")):
        Experiment(small(*changes, f"seed={seed}", f"model.width={width}", "rounds=1")).run(folder / f"w{width[-1]}")
    return [folder / "w1", folder / "w2"]
