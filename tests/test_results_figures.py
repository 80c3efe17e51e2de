"""The papers' figures: drawn from recorded runs alone, and what lacks its runs is said to lack them."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from fedwidth.cli import run_command
from fedwidth.config import read_settings, settings_toml
from fedwidth.errors import StateError
from fedwidth.models import build, example_inputs
from fedwidth.plan import trace
from fedwidth.results import make_record
from fedwidth.results_clients import CLIENTS, collect_clients, key_of, read_clients
from fedwidth.results_drawings import local_accuracies, trained
from fedwidth.results_figures import FIGURES, figure_texts, local_settings, write_figures
from fedwidth.results_page import find_tables

ROOT = Path(__file__).parents[1]
BY_NAME = {figure.name: figure for figure in FIGURES}


def record(table, label, accuracy, seed=1):
    """A run of a recipe that ended with this accuracy in percent."""
    (run,) = read_settings(table).only(label).runs
    lines = [{"round": run.settings.rounds, "global_accuracy": accuracy / 100, "local_accuracy": 0.9, "seconds": 1.0}]
    return make_record(table, label, replace(run.settings, seed=seed), changes=[], metrics=lines, steps=1)


def axes_of(name, records, kept=None):
    figure = BY_NAME[name]
    tables = find_tables(records)
    assert figure.is_drawn(tables, kept or {})
    return figure.draw(tables, kept or {}).axes


def points(axes):
    """Label -> points of the lines of a plot."""
    return {
        line.get_label().lstrip("\u200b"): list(zip(line.get_xdata(), np.round(line.get_ydata(), 6), strict=True))
        for line in axes.lines
    }


def test_without_runs_only_what_is_exact_is_drawn():
    tables = find_tables([])
    assert [figure.name for figure in FIGURES if figure.is_drawn(tables, {})] == ["fedbrb-figure3d"]
    text = "\n".join(figure_texts(tables, {}))
    assert text.count("![") == 1
    assert text.count("runs is recorded") == 5
    assert "FedRolex Figure 3: none of its 55 runs is recorded." in text
    assert "FedBRB Figure 6: no recipe yet" in text


def test_figure_3_shows_accuracy_over_rho_with_means_over_seeds():
    table = "fedrolex/figure3-cifar10"
    records = [
        record(table, "rho-0.2/high", 60.0),
        record(table, "rho-0.2/high", 70.0, seed=2),
        record(table, "rho-0.0/high", 40.0),
        record(table, "rho-1.0/low", 80.0),
    ]
    (axes,) = axes_of("fedrolex-figure3", records)
    assert points(axes) == {"high": [(0.0, 40.0), (0.2, 65.0)], "low": [(1.0, 80.0)]}
    assert axes.get_title() == "CIFAR-10"
    assert "Drawn from 3 of the 55 runs it needs." in "\n".join(figure_texts(find_tables(records), {}))


def test_figure_4_starts_at_the_largest_homogeneous_run():
    records = [
        record("fedrolex/figure4-cifar10", "gamma-4/high/fedrolex", 60.0),
        record("fedrolex/figure4-cifar10", "gamma-4/high/feddropout", 50.0),
        record("fedrolex/table3-cifar10-high", "largest", 75.0),
    ]
    (axes,) = axes_of("fedrolex-figure4", records)
    assert points(axes) == {
        "high, fedrolex": [(1.0, 75.0), (4.0, 60.0)],
        "high, feddropout": [(1.0, 75.0), (4.0, 50.0)],
    }


def test_figure_6_has_a_panel_for_each_data_set():
    records = [record(f"fedrolex/figure6-{data}", "r-0.25/low", 50.0) for data in ("cifar10", "cifar100")]
    left, right = axes_of("fedrolex-figure6", records)
    assert (left.get_title(), right.get_title()) == ("CIFAR-10", "CIFAR-100")
    assert points(left) == points(right) == {"low": [(0.25, 50.0)]}


def test_figure_5_counts_single_clients():
    table = "fedrolex/table4-cifar10-high"
    ours, smallest = record(table, "fedrolex", 60.0), record(table, "smallest", 30.0)
    tables = find_tables([ours, smallest])
    assert not BY_NAME["fedrolex-figure5"].is_drawn(tables, {})  # records alone hold a mean
    kept = {key_of(ours.settings): [0.95, 0.97, 0.1], key_of(smallest.settings): [0.5]}
    (axes,) = axes_of("fedrolex-figure5", [ours, smallest], kept)
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert [sum(bars) for bars in heights] == [3, 1]
    assert axes.get_title() == "CIFAR-10, 2 labels per client"


def test_fedbrb_figure_5_shows_ours_beside_the_published():
    table = "fedbrb/table3-cifar10-dynamic"
    (axes,) = axes_of("fedbrb-figure5", [record(table, "a0-c1-e1/non-iid-2/fedbrb", 60.0)])
    found = [(line.get_label(), list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert ("ours", [2], [60.0]) in found
    assert ("paper", [2], [66.33]) in found
    assert sum(label == "ours" for label, _, _ in found) == 1
    assert ("1/16 trained whole, paper", [0, 1], [62.57, 62.57]) in found


@pytest.fixture(scope="module")
def plan():
    return trace(build("preresnet18"), example_inputs("preresnet18"))


def test_figure_3d_by_hand(plan):
    """At 1/4 of 512: HeteroFL trains 128 x 128; FedRolex the weights between units less than 128 apart around the
    circle, 255/512 of all; FedBRB all."""
    tensor = [name for name, shape in plan.shapes.items() if shape[:2] == (512, 512)][-1]
    share = {name: trained(plan, name, tensor, (512,))[0] for name in ("heterofl", "fedrolex", "fedbrb")}
    assert (share["heterofl"] > 0).mean() == 1 / 16
    assert (share["fedrolex"] > 0).mean() == 255 / 512
    assert (share["fedbrb"] > 0).mean() == 1
    apart = (np.arange(512)[:, None] - np.arange(512)) % 512
    assert ((share["fedrolex"] > 0) == (np.minimum(apart, 512 - apart) < 128)).all()


def test_files_are_written_for_what_is_drawn(tmp_path):
    tables = find_tables([record("fedrolex/figure6-cifar10", "r-0.5/high", 50.0)])
    only = [figure for figure in FIGURES if figure.name == "fedrolex-figure6"]
    paths = write_figures(tables, {}, tmp_path, figures=only)
    assert [path.name for path in paths] == ["fedrolex-figure6.png", "fedrolex-figure6.svg"]
    assert "overlap r" in paths[1].read_text()


def finished(folder, settings, accuracies):
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(settings_toml(settings))
    (folder / "summary.json").write_text("{}")
    rows = [{"client": at, "accuracy": accuracy} for at, accuracy in enumerate(accuracies)]
    (folder / "clients.json").write_text(json.dumps(rows))


def test_clients_are_collected_from_finished_runs(tmp_path):
    wanted = local_settings()
    ours = replace(wanted[0], seed=3, device="cuda")  # where it ran does not matter
    work, results = tmp_path / "work", tmp_path / "results"
    results.mkdir()
    finished(work / "a", ours, [0.5, None, 0.75])
    finished(work / "other", replace(ours, rounds=7), [0.1])
    finished(work / "running", replace(ours, seed=4), [0.2])
    (work / "running" / "summary.json").unlink()
    (work / "broken").mkdir()
    (work / "broken" / "clients.json").write_text("{")
    assert collect_clients(results, work, wanted) == 1
    assert read_clients(results) == {key_of(asdict(ours)): [0.5, 0.75]}
    assert collect_clients(results, work, wanted) == 0
    made = record("fedrolex/table4-cifar10-high", "fedrolex", 60.0, seed=3)
    (cell,) = [c for c in find_tables([made])["fedrolex/table4-cifar10-high"] if c.records]
    assert local_accuracies(cell, read_clients(results)) == [50.0, 75.0]


def test_a_damaged_file_is_refused_in_one_line(tmp_path):
    (tmp_path / CLIENTS).write_text("{")
    with pytest.raises(StateError, match="damaged"):
        read_clients(tmp_path)


def test_the_command_writes_page_and_figures(tmp_path, capsys):
    (tmp_path / "coverage.json").write_bytes((ROOT / "results" / "coverage.json").read_bytes())
    page = tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    given = ["results", "--results", str(tmp_path), "--out", str(page), "--work", str(tmp_path)]
    assert run_command(given) == 0
    text = page.read_text()
    assert "![FedBRB Figure 3d](images/results/fedbrb-figure3d.png)" in text
    assert (page.parent / "images" / "results" / "fedbrb-figure3d.png").exists()
    svg = (page.parent / "images" / "results" / "fedbrb-figure3d.svg").read_text()
    for words in ("HeteroFL, 6.25 %", "FedRolex, 49.8 %", "Federated Dropout, 100 %", "FedBRB, 100 %", "after 512"):
        assert words in svg
    assert "0 runs with new accuracies" in capsys.readouterr().out
