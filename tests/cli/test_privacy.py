"""`fedwidth privacy`, and private runs from the command line: numbers, one clear line for bad input, and the budget."""

from __future__ import annotations

import json

import pytest

from fedwidth.cli.entry import run_command
from fedwidth.privacy import accounting
from small_runs import write_recipe

PLAN = ["privacy", "--rate", "0.01", "--noise", "1.1", "--rounds", "1000", "--delta", "1e-5"]


def json_of(capsys, *arguments):
    assert run_command([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.skipif(not accounting.installed(), reason="dp-accounting is not installed")
def test_36_the_command_gives_the_known_values(capsys):
    found = json_of(capsys, *PLAN)
    assert 1.505 <= found["epsilon"] <= 1.525
    assert found["accountant_version"] == accounting.installed()
    assert found["epsilon"] == json_of(capsys, *PLAN, "--accountant", "pld")["epsilon"]
    assert json_of(capsys, *PLAN, "--accountant", "rdp")["epsilon"] == pytest.approx(1.7118, abs=5e-5)


def test_36_without_the_package_the_bound_is_named(capsys, monkeypatch):
    monkeypatch.setattr(accounting, "installed", lambda: "")
    assert json_of(capsys, *PLAN)["epsilon"] == pytest.approx(1.7253, abs=5e-5)
    assert run_command(PLAN) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("epsilon 1.7253 at delta 1e-05: 1000 rounds of noise 1.1, each client in a round with")
    assert printed[1] == "by Rényi divergences of whole orders (dp-accounting is not installed)"


def test_without_luck_the_formula_is_exact(capsys):
    every = ["privacy", "--rate", "1", "--noise", "4", "--rounds", "10", "--delta", "1e-5"]
    assert json_of(capsys, *every)["epsilon"] == pytest.approx(3.341409, abs=1e-6)
    found = json_of(capsys, "privacy", "--rate", "1", "--epsilon", "3.341409", "--rounds", "10", "--delta", "1e-5")
    assert found["noise"] == pytest.approx(4.0, rel=2e-3)
    assert found["epsilon"] <= 3.341409


def test_it_says_how_loud_the_noise_is(capsys):
    """10 clients and 11.2 million weights: 10 / sqrt(11.2e6) = 0.00299."""
    more = ["--per-round", "10", "--parameters", "11.2e6"]
    every = ["privacy", "--rate", "1", "--noise", "1", "--rounds", "10", "--delta", "1e-5"]
    assert json_of(capsys, *every, *more)["signal_to_noise"] == pytest.approx(0.002988, abs=1e-6)
    assert run_command([*every, *more]) == 0
    assert "clients that all agree are 0.00299 times as long as the noise at best" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "0", "--noise", "1", "--rounds", "3", "--delta", "1e-5"], "rate must be a probability above 0"),
        (["--rate", "0.1", "--noise", "0", "--rounds", "3", "--delta", "1e-5"], "noise must be a number from 0.05 on"),
        (["--rate", "0.1", "--noise", "1", "--rounds", "0", "--delta", "1e-5"], "--rounds must be a whole number"),
        (["--rate", "0.1", "--noise", "1", "--rounds", "3", "--delta", "2"], "delta must be a probability above 0"),
        (["--rate", "0.1", "--rounds", "3", "--delta", "1e-5"], "give --noise to learn epsilon, or --epsilon"),
        (
            ["--rate", "0.1", "--noise", "1", "--rounds", "3", "--delta", "1e-5", "--accountant", "x"],
            "--accountant must",
        ),
        (["--rate", "0.1", "--noise", "1", "--rounds", "3", "--delta", "1e-5", "--parameters", "9"], "go together"),
        (["--rate", "0.1", "--epsilon", "-1", "--rounds", "3", "--delta", "1e-5"], "epsilon must be above 0"),
        (["--rate", "nan", "--noise", "1", "--rounds", "3", "--delta", "1e-5"], "rate must be a probability"),
        (["--noise", "1", "--rounds", "3", "--delta", "1e-5"], "--rate"),
        (["--rate", "x", "--noise", "1", "--rounds", "3", "--delta", "1e-5"], "--rate"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, message):
    assert run_command(["privacy", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert message in said.err


def test_a_run_that_spends_its_budget_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = write_recipe(tmp_path)
    budget = accounting.gaussian_accountant("rdp", noise=2.0, rate=0.5, delta=1e-5).epsilon(2) + 1e-9
    private = ["--set", "devices.sampling=poisson", "--set", "privacy.noise=2.0", "--set", "privacy.accountant=rdp"]
    start = ["run", recipe, "--out", "out", *private]
    assert run_command([*start, "--set", f"privacy.epsilon={budget}"]) == 0
    said = f"the budget of epsilon = {budget:g} was spent after 2 of 3 rounds; --resume goes on with a larger"
    assert said in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["rounds"] == 2
    assert run_command([*start, "--resume"]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["rounds"], summary["privacy"]["stopped"]) == (3, None)
    assert run_command([*start, "--set", "privacy.noise=3.0", "--resume"]) == 2
    assert "privacy.noise is 2.0 there and 3.0 now" in capsys.readouterr().err
