"""The table of what each width scores, beside that of the runs."""

from __future__ import annotations

import json

import pytest

from fedwidth.cli.entry import run_command
from small_runs import write_recipe


def test_each_width_has_a_column_and_its_mean_over_seeds(tmp_path, capsys):
    recipe = write_recipe(tmp_path, "evaluation.capacities = [1, 0.25]\n")
    arguments = ["run", recipe, "--set", "method.name=heterofl", "--seeds", "1,2", "--out", str(tmp_path / "runs")]
    assert run_command(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.startswith("accuracy at each width %"))
    assert [cell.strip() for cell in lines[start + 1].split("┃")] == ["run", "1", "0.25"]
    whole = json.loads((tmp_path / "runs" / "summary.json").read_text())
    own = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/summary.json")]
    assert len(own) == 2
    for width, found in whole["table"][0]["capacity_accuracy"].items():
        by_seed = [summary["capacity_accuracy"][width] for summary in own]
        assert found == pytest.approx(sum(by_seed) / 2)
        assert f"{100 * found:.2f} ± " in lines[start + 3]


def test_where_only_the_whole_model_was_measured_there_is_no_such_table(tmp_path, capsys):
    assert run_command(["run", write_recipe(tmp_path), "--seeds", "1,2", "--out", str(tmp_path / "runs")]) == 0
    assert "at each width" not in capsys.readouterr().out
