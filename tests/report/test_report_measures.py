"""A report about runs that measure something else than accuracy."""

import json
import math

import pytest
from run_folders import lines, write_run

from fedwidth.objectives.metric import Measure
from fedwidth.report import write_figures
from fedwidth.report.describe import describe
from fedwidth.report.entries import group_runs
from fedwidth.report.page import render
from fedwidth.report.runs import read_runs

MSE = Measure("mse", "mean squared error", higher_is_better=False)


def write_errors(folder, name, errors):
    """A run that measures its error, as such a run writes it down."""

    def renamed(table):
        found = {key.replace("accuracy", "mse"): value for key, value in table.items()}
        return {**found, "metric": MSE.facts()} if any("mse" in key for key in found) else found

    metrics = [renamed(line) for line in lines(12, accuracy=errors)]
    write_run(folder, name, metrics=metrics)
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"global_mse": errors(12), "local_mse": errors(12), "metric": MSE.facts()}
    (folder / "summary.json").write_text(json.dumps(renamed({k: v for k, v in summary.items() if "accuracy" not in k})))
    rows = [
        renamed(row | {"accuracy": 2.0 + row["client"]}) for row in json.loads((folder / "clients.json").read_text())
    ]
    (folder / "clients.json").write_text(json.dumps(rows))


@pytest.fixture
def folder(tmp_path):
    write_errors(tmp_path / "a", "A", lambda round: 30.0 / round)
    write_errors(tmp_path / "b", "B", lambda round: 60.0 / round)
    return tmp_path


def test_numbers_and_sentences_are_those_of_the_metric(folder):
    data = describe(group_runs(read_runs([folder])), folders=[folder])
    assert data["measure"] == MSE.facts()
    assert [entry["accuracy"]["mean"] for entry in data["entries"]] == [2.5, 5.0]
    assert data["entries"][0]["curves"]["global_accuracy"]["mean"] == [15, 7.5, 5, 3.75, 3, 2.5]
    assert [run["best"] for run in data["runs"]] == [2.5, 5.0]
    assert data["comparison"]["lead"] == 0
    targets = data["reached"]["targets"]
    assert targets == sorted(targets, reverse=True), "the hardest to reach last"
    assert targets[-1] >= 2.5
    assert data["reached"]["rows"][0][-1]["round"] == 12
    assert data["reached"]["rows"][1][-1] is None
    assert (data["gains"]["low"], data["gains"]["high"]) == (2.0, 7.0)
    assert data["widths"]["views"][0]["levels"][-1]["mean"] == 2.5
    assert "mean squared error" in render(data)


def test_the_lowest_is_the_best_of_a_sweep(folder):
    compared = describe(group_runs(read_runs([folder])))["comparison"]
    assert "%" not in json.dumps(compared["sentences"])


def test_runs_with_another_metric_are_listed_without_numbers(folder):
    write_run(folder / "c", "classes")
    mixed = describe(group_runs(read_runs([folder])))
    other = mixed["entries"][2]
    assert math.isnan(other["accuracy"]["mean"])
    assert other["notes"] == ["it is measured by accuracy, which this page does not tell"]
    assert "global_accuracy" not in other["curves"]
    assert "global_loss" in other["curves"]
    assert math.isnan(mixed["runs"][2]["accuracy"])


def test_figures_say_what_they_show(folder, tmp_path):
    write_figures([folder], tmp_path / "figures")
    found = {path.stem: path.read_text() for path in (tmp_path / "figures").glob("*.svg")}
    assert "mean squared error" in found["accuracy"]
    for name, svg in found.items():
        assert "accuracy [%]" not in svg, name


@pytest.mark.parametrize("facts", [None, "mse", {}, {"name": 3}, {"name": ""}])
def test_a_metric_that_makes_no_sense_is_not_believed(folder, facts):
    for path in (folder / "a").iterdir():
        if path.name == "summary.json":
            path.write_text(json.dumps(json.loads(path.read_text()) | {"metric": facts}))
        if path.name == "metrics.jsonl":
            path.write_text(
                "".join(json.dumps(json.loads(x) | {"metric": facts}) + "\n" for x in path.read_text().splitlines())
            )
    (run, _) = read_runs([folder])
    assert run.measure.name == "accuracy"
