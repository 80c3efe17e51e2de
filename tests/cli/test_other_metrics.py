"""What commands say of runs that are not about accuracy: which metric, in its own unit, and which way is better."""

from __future__ import annotations

import json

import pytest

from fedwidth.cli.entry import run_command

RECIPE = """
title = "Numbers"
label = "wide"
rounds = 4
model = { name = "mlp", options = { hidden = [16] } }
data = { name = "own_objective:regression", clients = 6, validation = 0.2 }
objective.name = "regression"
devices = { per_round = 3, capacities = "1:1" }
evaluation = { every = 2, alarm = 0.0001 }
engine = "serial"
[[compare]]
label = "narrow"
model.width = 0.125
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "numbers.toml").write_text(RECIPE)
    out = folder / "out"
    assert run_command(["run", str(folder / "numbers.toml"), "--seeds", "1,2,3", "--out", str(out)]) == 0
    return out


def test_summaries_say_which_metric_and_which_way_is_better(runs):
    found = json.loads((runs / "summary.json").read_text())
    for row in found["table"]:
        assert {"global_mse", "best_global_mse", "local_mse", "validation_mse", "global_mse_std"} <= set(row)
    one = json.loads(next(runs.rglob("*1/summary.json")).read_text())
    expected = {"name": "mse", "title": "mean squared error", "higher_is_better": False, "percent": False}
    assert one["metric"] == expected
    lines = [json.loads(line) for line in next(runs.rglob("*1/metrics.jsonl")).read_text().splitlines()]
    measured = [line for line in lines if "global_mse" in line]
    assert one["best_global_mse"] == min(line["global_mse"] for line in measured)
    assert all(line["metric"] == expected for line in measured)


def test_the_table_and_its_sentences(tmp_path, capsys):
    (tmp_path / "numbers.toml").write_text(RECIPE)
    assert run_command(["run", str(tmp_path / "numbers.toml"), "--seeds", "1,2", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "test mean squared error" in said
    assert "accuracy" not in said
    assert "%" not in said.partition("Seeds")[0], "numbers stand in the metric's own unit"
    assert "Of the mean squared error, lower is better." in said


def test_a_target_is_reached_from_above(runs, capsys):
    for target, reached in (("1000", "3 of 3"), ("0.000001", "0 of 3")):
        assert run_command(["report", str(runs), "--target", target]) == 0
        assert capsys.readouterr().out.count(reached) == 2
