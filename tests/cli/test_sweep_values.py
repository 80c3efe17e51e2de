"""`fedwidth sweep` over values that have commas of their own: lists of capacities, tables, quoted text."""

import json

import pytest

from fedwidth.cli.entry import run_command
from fedwidth.config.read import read_settings
from small_runs import write_recipe

ONE = ["--set", "rounds=1", "--set", "evaluation.local=false"]


def runs_of(folder):
    return json.loads((folder / "summary.json").read_text())["runs"]


def capacities_of(folder, run):
    """The capacity that each client of the first round had."""
    line = json.loads((folder / run["folder"] / "metrics.jsonl").read_text().splitlines()[0])
    return dict(zip(line["clients"], line["capacities"], strict=True))


def test_over_lists_of_capacities(tmp_path, capsys):
    recipe = write_recipe(tmp_path)
    lists = ['[1,1,1,"1/2","1/2","1/2"]', "[0.5, 0.5, 0.5, 1, 1, 1]", "a1-b1"]
    out = tmp_path / "out"
    command = ["sweep", recipe, "--out", str(out), *ONE, "--over", f"devices.capacities={','.join(lists)}"]
    assert run_command(command) == 0
    first, second, third = runs_of(out)
    strong, weak = capacities_of(out, first), capacities_of(out, second)
    assert strong == {client: 1.0 if client < 3 else 0.5 for client in strong}
    assert weak == {client: 1.5 - capacity for client, capacity in strong.items()}
    assert third["label"] == "devices.capacities=a1-b1"
    assert "capacities [0.5, 0.5, 0.5, 1, 1, 1]" in capsys.readouterr().out
    assert json.loads((out / "about.json").read_text())["over"] == [["devices.capacities", lists]]
    before = (out / "summary.json").read_text()
    assert run_command([*command, "--resume"]) == 0
    assert (out / "summary.json").read_text() == before


def test_long_lists_have_folders_and_titles_of_their_own(tmp_path):
    """Two lists of 200 that differ in their middle alone."""
    recipe = write_recipe(tmp_path)
    lists = [json.dumps([1] * 100 + [middle] + [0.5] * 99) for middle in (1, 0.5)]
    clients = ["--set", "data.clients=200", "--set", "data.partition=iid"]
    command = ["sweep", recipe, "--out", str(tmp_path / "out"), *ONE, *clients]
    assert run_command([*command, "--over", f"devices.capacities={','.join(lists)}"]) == 0
    folders = [run["folder"] for run in runs_of(tmp_path / "out")]
    assert len(set(folders)) == 2
    assert all(len(folder) < 255 for folder in folders)
    titles = [f"capacities {lists[0][:17]}…{lists[0][-10:]}{copy}" for copy in ("", " (2)")]
    labels = [read_settings(tmp_path / "out" / folder / "config.toml").main.name for folder in folders]
    assert labels == titles


def test_over_tables(tmp_path):
    recipe = write_recipe(tmp_path)
    values = "{hidden = [4]},{hidden = [8, 4]}"
    assert (
        run_command(["sweep", recipe, "--out", str(tmp_path / "out"), *ONE, "--over", f"model.options={values}"]) == 0
    )
    small, large = runs_of(tmp_path / "out")
    assert small["label"] == "model.options={hidden = [4]}"
    assert large["label"] == "model.options={hidden = [8, 4]}"


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ("devices.capacities=[1,0.5", "a bracket or a quote that is not closed"),
        ("devices.capacities=1,0.5]", "a bracket or a quote that is not closed"),
        ("devices.capacities='a1,b1", "a bracket or a quote that is not closed"),
        ("devices.capacities=[1,0.5],[1]", "devices.capacities"),
        ("devices.capacities=[1,1/2],a1", "devices.capacities"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_written(over, message, tmp_path, capsys):
    assert run_command(["sweep", write_recipe(tmp_path), "--out", str(tmp_path / "out"), "--over", over]) == 2
    (said,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert message in said
    assert not (tmp_path / "out").exists()


def test_all_runs_of_a_sweep_give_up_the_same_public_data(tmp_path):
    """Otherwise the method that needs some would be compared on less data of its clients' own."""
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    command = ["sweep", recipe, "--out", str(out), *ONE, "--over", "method.name=fedrolex,feddf"]
    assert run_command(command) == 0
    kept = [read_settings(out / run["folder"] / "config.toml").main.data.public for run in runs_of(out)]
    assert kept == [0.1, 0.1]


def test_a_setting_is_swept_over_once(tmp_path, capsys):
    command = ["sweep", write_recipe(tmp_path), "--out", str(tmp_path / "out"), "--over", "rounds=1,2", "--over"]
    assert run_command([*command, "rounds=3"]) == 2
    assert "--over names rounds twice: give all its values in one, rounds=a,b,c" in capsys.readouterr().err
    assert run_command([*command[:-1], "--set", "rounds=5"]) == 2
    assert "--over sweeps over rounds, which is set to one value too" in capsys.readouterr().err
    assert run_command([*command[:4], "--over", "seed=1,2"]) == 2
    assert "seeds repeat a run and are nothing to choose between: --seeds" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
