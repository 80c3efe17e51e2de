"""The table of what each width scores, beside that of the runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedwidth.cli.entry import run_command
from fedwidth.cli.runs.planned_run import PlannedRun
from fedwidth.cli.runs.widths import print_widths
from fedwidth.config.read import read_config
from fedwidth.objectives.metric import ACCURACY
from small_runs import small, write_recipe


def test_each_width_has_a_column_and_its_mean_over_seeds(tmp_path, capsys):
    recipe = write_recipe(tmp_path, "evaluation.capacities = [1, 0.25]\n")
    arguments = ["run", recipe, "--set", "method.name=heterofl", "--seeds", "1,2", "--out", str(tmp_path / "runs")]
    assert run_command(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.startswith("accuracy at each width %"))
    assert [cell.strip() for cell in lines[start + 1].split("┃")] == ["run", "1", "0.25", "together"]
    whole = json.loads((tmp_path / "runs" / "summary.json").read_text())
    own = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/summary.json")]
    assert len(own) == 2
    for width, found in whole["table"][0]["capacity_accuracy"].items():
        by_seed = [summary["capacity_accuracy"][width] for summary in own]
        assert found == pytest.approx(sum(by_seed) / 2)
        assert f"{100 * found:.2f} ± " in lines[start + 3]
    said = "Seeds: 1, 2. ± is the standard deviation over seeds; MiB are a mean over them, seconds their sum."
    assert said in lines
    both = [100 * summary["together_accuracy"] for summary in own]
    assert lines[start + 3].rsplit("│", 1)[1].strip().startswith(f"{sum(both) / 2:.2f} ± ")


def test_the_widths_that_validation_samples_choose_have_a_column(tmp_path, capsys):
    recipe = write_recipe(tmp_path, "evaluation.capacities = [1, 0.25]\n")
    changes = ["--set", "method.name=heterofl", "--set", "data.validation=0.2"]
    assert run_command(["run", recipe, *changes, "--out", str(tmp_path / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.startswith("accuracy at each width %"))
    assert [cell.strip() for cell in lines[start + 1].split("┃")] == ["run", "1", "0.25", "together", "chosen"]
    summary = json.loads((tmp_path / "runs" / "summary.json").read_text())
    assert lines[start + 3].rsplit("│", 1)[1].strip() == f"{100 * summary['chosen_accuracy']:.2f}"
    widths = " + ".join(f"{width:g}" for width in summary["chosen_capacities"])
    assert f"HeteroFL: validation samples choose {widths}." in lines


def test_widths_that_seeds_choose_differently_are_told_apart(capsys):
    def made(seed, widths):
        run = PlannedRun("heterofl", "HeteroFL", small(f"seed={seed}", "method.name=heterofl"), Path())
        return run, {"capacity_accuracy": {"1": 0.5, "0.5": 0.4}, "chosen_accuracy": 0.6, "chosen_capacities": widths}

    print_widths({"heterofl": [made(1, [1.0]), made(2, [1.0, 0.5]), made(3, [1.0])]}, ACCURACY)
    said = capsys.readouterr().out
    assert "HeteroFL: validation samples choose 1 (seed 1, 3) and 1 + 0.5 (seed 2).\n" in said


def test_gains_and_comparisons_are_said_to_be_of_whole_models(tmp_path, capsys):
    recipe = write_recipe(tmp_path, "evaluation.capacities = [1, 0.25]\n")
    changes = ["--set", "method.name=heterofl", "--set", "rounds=1", "--yardsticks"]
    said = "All of this compares whole models; what their widths reach, alone or together, is in the table of widths.\n"
    assert run_command(["run", recipe, *changes, "--out", str(tmp_path / "runs")]) == 0
    assert said in capsys.readouterr().out
    row, *others = json.loads((tmp_path / "runs" / "summary.json").read_text())["table"]
    own = json.loads((tmp_path / "runs" / "summary.json").read_text())["together_accuracy"]
    assert row["together_accuracy"] == own
    assert not any("together_accuracy" in other for other in others)
    assert (
        run_command(["run", recipe, *changes, "--set", "evaluation.capacities=[]", "--out", str(tmp_path / "no")]) == 0
    )
    assert said not in capsys.readouterr().out


def test_what_widths_gain_that_answer_together_stands_beside_them(tmp_path, capsys):
    recipe = write_recipe(tmp_path, "evaluation.capacities = [1, 0.25]\n")
    changes = ["--set", "method.name=heterofl", "--set", "rounds=1", "--yardsticks", "--seeds", "1,2"]
    out = tmp_path / "runs"
    assert run_command(["run", recipe, *changes, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    (mine, *others) = json.loads((out / "summary.json").read_text())["table"]
    assert not any("gain_together" in other for other in others)
    runs = json.loads((out / "summary.json").read_text())["runs"]
    own = [json.loads((out / run["folder"] / "summary.json").read_text()) for run in runs if run["label"] == "heterofl"]
    over = mine["gain_together"]["over"]
    (yardstick,) = (run for run in others if run["title"] == f"yardstick: {over}")
    best = [run["global_accuracy"] for run in runs if run["label"] == yardstick["label"]]
    values = [100 * (each["together_accuracy"] - bar) for each, bar in zip(own, best, strict=True)]
    assert mine["gain_together"]["values"] == pytest.approx(values)
    assert mine["gain_together"]["of"] == "together"
    assert "The gain is of" not in said, "where nothing was chosen"
    gain = sum(values) / 2
    (row,) = (line for line in said.split("at each width %")[1].splitlines() if line.startswith("HeteroFL "))
    assert row.rsplit("│", 1)[1].strip().startswith(f"{gain:+.1f} (".replace("-", "−"))
    assert f"\nWith all widths together: HeteroFL's gain over {over} is not decided" in said
    assert "\nAll else compares whole models; what their widths reach" in said


def test_it_says_whose_the_gain_is_where_widths_were_chosen(tmp_path, capsys):
    recipe = write_recipe(tmp_path, "evaluation.capacities = [1, 0.25]\n")
    changes = ["--set", "method.name=heterofl", "--set", "rounds=1", "--set", "data.validation=0.2", "--yardsticks"]
    assert run_command(["run", recipe, *changes, "--out", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "\nThe gain is of what is chosen where something is, else of all widths together.\n" in said
    summary = json.loads((tmp_path / "runs" / "summary.json").read_text())
    row, best = summary["table"][0], summary["table"][0]["gain_together"]
    (bar,) = (run["global_accuracy"] for run in summary["runs"] if run["title"] == f"yardstick: {best['over']}")
    assert best["of"] == "chosen"
    assert best["mean"] == pytest.approx(100 * (row["chosen_accuracy"] - bar))


def test_without_the_test_set_it_says_that_it_is_of_validation_samples(tmp_path, capsys):
    more = '[[compare]]\nlabel = "tested"\nmethod.name = "heterofl"\nevaluation.test = true\n'
    recipe = write_recipe(tmp_path, f"evaluation.capacities = [1, 0.25]\nevaluation.test = false\n{more}")
    command = ["run", recipe, "--set", "data.validation=0.2"]
    assert run_command([*command, "--out", str(tmp_path / "both")]) == 0
    out = capsys.readouterr().out
    assert "\naccuracy at each width %" in out
    assert "\nfedrolex: on validation samples, as the test set was not looked at.\n" in out
    assert run_command([*command, "--only", "fedrolex", "--out", str(tmp_path / "one")]) == 0
    assert "\nvalidation accuracy at each width %" in capsys.readouterr().out


def test_runs_that_were_measured_at_no_width_have_no_row(tmp_path, capsys):
    recipe = write_recipe(tmp_path, "evaluation.capacities = [1, 0.25]\n")
    assert run_command(["run", recipe, "--yardsticks", "--set", "rounds=1", "--out", str(tmp_path / "runs")]) == 0
    runs, widths = capsys.readouterr().out.split("\naccuracy at each width %")
    assert "\nyardstick: exclude " in runs
    assert "\nfedrolex " in widths
    assert "\nyardstick: " not in widths


def test_where_only_the_whole_model_was_measured_there_is_no_such_table(tmp_path, capsys):
    assert run_command(["run", write_recipe(tmp_path), "--seeds", "1,2", "--out", str(tmp_path / "runs")]) == 0
    assert "at each width" not in capsys.readouterr().out


def test_models_that_stay_with_clients_are_told_from_sub_models(tmp_path, capsys):
    recipe = write_recipe(tmp_path, "evaluation.capacities = [1, 0.25]\n")
    changes = ["--set", "method.name=dsfl", "--set", "rounds=3", "--set", "method.options={samples=20}"]
    assert run_command(["run", recipe, *changes, "--out", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "DS-FL: at each width the model of the first client of that size, which stays with it." in said


def test_the_table_says_which_devices_a_method_left_out(tmp_path, capsys):
    changes = ["--set", "method.name=cocofl", "--set", "rounds=1", "--only", "fedrolex"]
    assert run_command(["run", *changes, "--out", str(tmp_path / "runs")]) == 0
    assert "1, 0.5 of a1-b1-c1-d1-e1" in capsys.readouterr().out
    left_out = json.loads((tmp_path / "runs" / "summary.json").read_text())["left_out"]
    assert list(left_out) == ["0.25", "0.125", "0.0625"]
    assert "capacity 0.25 has 226,738" in left_out["0.25"]


def test_servers_of_other_widths_are_told_apart(tmp_path, capsys):
    recipe = write_recipe(tmp_path, "evaluation.capacities = [1, 0.25]\n")
    changes = ["--over", "model.width=1,1/2", "--set", "devices.relative_to=model"]
    assert run_command(["sweep", recipe, *changes, "--out", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "Widths are shares of the server's model, which is not of the same width in all runs." in said
    assert "in all runs. `fedwidth export --capacity` reads them so, too." in said


def swept(tmp_path, capsys, *changes, more=""):
    """What a sweep over the server's width says and prints, and the settings of its runs."""
    out = tmp_path / "runs"
    command = ["sweep", write_recipe(tmp_path, more), "--over", "model.width=1,1/2", *changes, "--out", str(out)]
    assert run_command(command) == 0
    said = capsys.readouterr()
    folders = [out / each["folder"] for each in json.loads((out / "summary.json").read_text())["runs"]]
    return said.out, said.err, [read_config(folder / "config.toml").devices for folder in folders]


def test_a_sweep_over_the_servers_width_keeps_the_devices_and_says_so(tmp_path, capsys):
    said, aside, devices = swept(tmp_path, capsys)
    assert [each.capacities for each in devices] == ["a1-b1-c1", "a2-b1"]
    assert aside.count("--over model.width: devices stay as they are (devices.relative_to=model); --set") == 1
    assert "width 1/2 │ b2-c1 " in said, "what devices really train"


@pytest.mark.parametrize("way", ["set", "over", "recipe"])
def test_devices_that_are_to_shrink_with_the_server_do(way, tmp_path, capsys):
    how = {
        "set": ["--set", "devices.relative_to=server"],
        "over": ["--over", "devices.relative_to=server"],
        "recipe": [],
    }
    more = 'devices.relative_to = "server"\n' if way == "recipe" else ""
    said, aside, devices = swept(tmp_path, capsys, *how[way], more=more)
    assert [each.capacities for each in devices] == ["a1-b1-c1"] * 2
    assert "stay as they are" not in aside
    assert "│ b1-c1-d1 " in said, "and the table tells their widths apart"


@pytest.mark.parametrize(
    "changes",
    [
        ["devices.budgets={phone = {upload = '1GB'}}", "devices.capacities=a1-b1-c1-d1-e1"],
        ["method.name=hetlora"],
        ["adapter.rank=4"],
    ],
)
def test_budgets_and_shares_of_a_rank_stay_as_they_are_in_any_case(changes, tmp_path, capsys):
    said, aside, devices = swept(tmp_path, capsys, *(word for change in changes for word in ("--set", change)))
    assert devices[0] == devices[1]
    assert "devices stay as they are" not in aside
    mixes = [line.split("│")[1] for line in said.splitlines() if line.startswith("width 1")]
    assert mixes[0] == mixes[1] or "budgets" in changes[0]


def test_where_devices_cannot_stay_as_they_are_one_line_says_what_to_add(tmp_path, capsys):
    command = ["sweep", write_recipe(tmp_path), "--over", "model.width=1,1/2", "--set", "devices.excluded=[0.5]"]
    assert run_command([*command, "--out", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "leaves out some of 1, 0.5" in error
    assert "--set devices.relative_to=server" in error
    assert not (tmp_path / "runs").exists()


def test_a_method_whose_devices_hold_the_whole_model_has_no_narrower_widths(tmp_path, capsys):
    recipe = write_recipe(tmp_path, "evaluation.capacities = [1, 0.25]\n")
    methods = ["--over", "method.name=heterofl,fedavg,fedprox"]
    assert run_command(["sweep", recipe, *methods, "--out", str(tmp_path / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.startswith("accuracy at each width %"))
    rows = {
        cells[0]: cells[1:] for line in lines[start + 3 : start + 6] if (cells := [c.strip() for c in line.split("│")])
    }
    assert "–" not in rows["HeteroFL"]
    for name in ("FedAvg", "FedProx"):
        assert rows[name][1:] == ["–", "–"]
        assert rows[name][0] != "–"
        assert any(line.startswith(name) and "│ all 1 " in line for line in lines)
