"""What researchers got wrong, or were told wrongly, when they ran a method of their own from the command line."""

from __future__ import annotations

import json
import re

import pytest
import torch

from fedwidth.cli.entry import run_command
from fedwidth.methods import ROUNDING, Method, per_group
from small_runs import write_recipe

HERE = "test_a_method_of_ones_own"


def mine(units):
    return Method("home", "Home window", "mine", "-", choose=per_group(units), options={"rounding": ROUNDING})


def by_level(size, kept, at):
    start = at.enrolled.index(at.capacity) * size // len(at.enrolled)
    return (torch.arange(kept) + start) % size


def failing(size, kept, at):
    return torch.arange(kept) // 0


def too_few(size, kept, at):
    return torch.arange(kept - 1) if at.round > 0 else torch.arange(kept)


def of_two(size, kept):
    return torch.arange(kept)


def of_one_group(size, kept, at):
    return torch.arange(kept)


def by_luck(size, kept, at):
    return torch.randperm(size)[:kept]


BY_LUCK = mine(by_luck)
BY_LEVEL, FAILING, TOO_FEW, OF_TWO = mine(by_level), mine(failing), mine(too_few), mine(of_two)
NOT_WRAPPED = Method("home", "Home window", "mine", "-", choose=of_one_group)


def run(name, folder, *more):
    folder.mkdir(exist_ok=True)
    return run_command(
        ["run", write_recipe(folder), "--set", f"method.name={HERE}:{name}", "--out", str(folder / "out"), *more]
    )


def error(capsys):
    (said,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    return said


def test_the_capacities_there_are_are_known_before_the_first_round_too(tmp_path):
    assert run("BY_LEVEL", tmp_path, "--set", "rounds=1") == 0


@pytest.mark.parametrize(
    "change", ["devices.excluded=[0.25]", "devices.capacities=1:1 1/2:1 1/4:0", "devices.capacities=1:1 1/2:100 1/4:1"]
)
def test_no_device_is_asked_for_that_takes_no_part(change, tmp_path):
    assert run("BY_LEVEL", tmp_path / "widths", "--set", "rounds=1", "--set", change) == 0
    assert run("BY_LEVEL", tmp_path / "ranks", "--set", "rounds=1", "--set", change, "--set", "adapter.rank=4") == 0


def test_what_budgets_can_pay_for_is_no_matter_of_the_try_out(tmp_path):
    changes = ["rounds=1", "devices.capacities=a1-b1-c1-d1-e1", "devices.budgets={phone = {upload = '2kB'}}"]
    changes.append("evaluation.capacities=[0.8125]")  # which is what they come to
    assert run("BY_LEVEL", tmp_path, *(part for change in changes for part in ("--set", change))) == 0


def test_a_width_to_measure_that_a_method_has_nothing_for_is_said_in_the_try_out(tmp_path, capsys):
    assert run("BY_LEVEL", tmp_path, "--set", "evaluation.capacities=[0.125]") == 1
    assert error(capsys).startswith("error: home was tried out before the run: round 0, client 3, capacity 0.125, ")
    assert not (tmp_path / "out").exists()


def test_what_fails_in_the_try_out_says_that_it_was_one(tmp_path, capsys):
    assert run("FAILING", tmp_path) == 1
    said = error(capsys)
    assert said.startswith("error: home was tried out before the run: round 0, client 1, capacity 0.5, stage choose: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "function"), [("OF_TWO", "of_two"), ("NOT_WRAPPED", "of_one_group")])
def test_a_function_that_is_called_otherwise_is_named_in_one_line_alone(name, function, tmp_path, capsys):
    assert run(name, tmp_path) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"error: home was tried out before the run: home cannot choose: {function} is called with (")
    assert not (tmp_path / "out").exists()


def test_where_code_of_ones_own_failed_is_shown(tmp_path, capsys):
    assert run("FAILING", tmp_path) == 1
    assert "in failing\n    return torch.arange(kept) // 0" in capsys.readouterr().err


def test_all_runs_of_a_sweep_are_tried_out_before_the_first_one_trains(tmp_path, capsys):
    over = ["--over", f"method.name=heterofl,{HERE}:BY_LUCK", "--out", str(tmp_path / "out")]
    assert run_command(["sweep", write_recipe(tmp_path), *over]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"error: run 'method.name={HERE}:BY_LUCK': home chooses otherwise when it is asked the same")
    assert not (tmp_path / "out").exists()


def test_a_sweep_shows_where_code_of_ones_own_failed_and_no_more(tmp_path, capsys):
    over = ["--over", f"method.name=heterofl,{HERE}:FAILING", "--out", str(tmp_path / "out")]
    assert run_command(["sweep", write_recipe(tmp_path), *over]) == 1
    said = capsys.readouterr().err
    assert "in failing\n    return torch.arange(kept) // 0" in said
    assert said.count("Traceback") == 1


def test_a_method_that_is_refused_leaves_the_runs_it_would_have_replaced(tmp_path, capsys):
    assert run("BY_LEVEL", tmp_path, "--set", "rounds=1", "--seeds", "1,2") == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert run("BY_LUCK", tmp_path, "--set", "rounds=1", "--seeds", "1,2", "--overwrite") == 2
    assert "home chooses otherwise when it is asked the same" in error(capsys)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_choice_that_goes_wrong_in_a_later_round_says_in_which_and_for_whom(tmp_path, capsys):
    assert run("TOO_FEW", tmp_path, "--set", "devices.capacities=1:1 1/2:100") == 2
    said = error(capsys)
    assert re.match(r"error: round 1, client \d, capacity 0\.5, stage choose: home keeps 3 units of group", said)


def test_a_run_whose_method_is_replaced_is_called_by_that_method(tmp_path, capsys):
    changes = ["--set", f"method.name={HERE}:BY_LEVEL", "--set", "rounds=1", "--seeds", "1,2"]
    assert run_command(["run", "--only", "fedrolex", *changes, "--out", str(tmp_path / "out")]) == 0
    assert "\nHome window │ " in capsys.readouterr().out
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    (row,) = summary["table"]
    assert (row["label"], row["title"]) == ("fedrolex", "Home window")
    assert [each["title"] for each in summary["runs"]] == ["Home window"] * 2
