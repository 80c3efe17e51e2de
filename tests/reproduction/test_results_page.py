"""docs/results.md: up to date, made of runs of the recipes alone, and written by one command."""

import re
from dataclasses import asdict
from pathlib import Path
from shutil import copy

import pytest
from reproduction.__main__ import main
from reproduction.page import QUESTION, write_page

from fedwidth.analysis.experiment_key import experiment_key
from fedwidth.config.read import read_settings
from fedwidth.reproduce.records import read_all

ROOT = Path(__file__).parents[2]
MAX_LINES = 42
"""A screen."""


def test_the_page_in_the_repository_is_up_to_date():
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert page == write_page(ROOT / "results"), "run `make results`"


def test_the_first_screen_says_it_all():
    screen, _, _ = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").partition("\n## ")
    assert len(screen.splitlines()) <= MAX_LINES
    assert screen.startswith(f"# Results\n\n{QUESTION} Partly. ")
    for said in (
        "| published | here | seeds | so |",
        "95 % interval",
        "published accuracies have been run",
        "On this page: ",
    ):
        assert said in screen


def test_every_recorded_run_is_a_run_of_its_recipe_and_was_not_cut_short():
    records = [made for made in read_all(ROOT / "results") if not made.recipe.startswith("queue/")]
    recipes = {name: {run.label: run for run in read_settings(name).runs} for name in {r.recipe for r in records}}
    for made in records:
        run = recipes[made.recipe][made.label]
        assert made.key == experiment_key(asdict(run.settings)), f"{made.recipe} {made.label}: the recipe has changed"
        assert made.evaluations[-1][0] == made.rounds == run.settings.rounds
        assert made.final_accuracy == pytest.approx(made.evaluations[-1][1], abs=1e-6)
        assert made.best_accuracy == pytest.approx(max(each[1] for each in made.evaluations), abs=1e-6)
        assert made.version
        assert not made.settings["data"]["root"], "no path of a machine"


def test_a_folder_of_results_that_is_not_there_is_refused(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("as it was")
    assert main(["--results", str(tmp_path / "wrong"), "--out", str(page)]) == 2
    assert (
        capsys.readouterr().err
        == f"error: there is no folder {tmp_path}/wrong; give the one of the finished runs as --results\n"
    )
    assert page.read_text() == "as it was"
    assert not (tmp_path / "wrong").exists()


def test_without_any_runs_the_command_writes_a_page_that_says_so_and_the_figure_that_needs_none(tmp_path, capsys):
    copy(ROOT / "results" / "coverage.json", tmp_path)  # else it is measured, which takes a minute
    page = tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    assert main(["--results", str(tmp_path), "--out", str(page)]) == 0
    text = page.read_text()
    assert re.search(r"- 0 of \d{4} published accuracies have been run", text)
    assert "| `thesis/table3-1` | 125 | 125 | not known |" in text
    assert "no time is known yet" in text
    assert "about 0 s" not in text
    assert "![FedBRB Figure 3d](images/results/fedbrb-figure3d.png)" in text
    drawn = page.parent / "images" / "results"
    assert capsys.readouterr().out.split() == [
        str(page),
        *(str(drawn / f"fedbrb-figure3d.{kind}") for kind in ("png", "svg")),
    ]
    svg = (drawn / "fedbrb-figure3d.svg").read_text()
    for words in ("HeteroFL, 6.25 %", "FedRolex, 49.8 %", "Federated Dropout, 100 %", "FedBRB, 100 %", "after 512"):
        assert words in svg
    assert main(["--help"]) == 0
    assert "coverage.json" in capsys.readouterr().out
