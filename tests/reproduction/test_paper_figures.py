"""The papers' figures: drawn from recorded runs alone, and what lacks its runs is said to lack them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reproduction.drawings import share_trained
from reproduction.figures import FIGURES, figure_texts, write_figures
from reproduction.page import find_tables

from fedwidth.config.read import read_settings
from fedwidth.models import build, example_inputs
from fedwidth.plan import trace
from fedwidth.reproduce.records import make_record

ROOT = Path(__file__).parents[2]
BY_NAME = {figure.name: figure for figure in FIGURES}


def record(table, label, accuracy, seed=1, clients=None):
    """A run of a recipe that ended with this accuracy in percent."""
    (run,) = read_settings(table).only(label).runs
    lines = [{"round": run.settings.rounds, "global_accuracy": accuracy / 100, "local_accuracy": 0.9, "seconds": 1.0}]
    made = make_record(table, label, replace(run.settings, seed=seed), changes=[], metrics=lines, steps=1)
    return replace(made, clients=clients)


def axes_of(name, records):
    figure = BY_NAME[name]
    tables = find_tables(records)
    assert figure.is_drawn(tables)
    return figure.draw(tables).axes


def points(axes):
    """Label -> points of the lines of a plot."""
    return {
        line.get_label().lstrip("\u200b"): list(zip(line.get_xdata(), np.round(line.get_ydata(), 6), strict=True))
        for line in axes.lines
    }


def test_without_runs_only_what_is_exact_is_drawn():
    tables = find_tables([])
    assert [figure.name for figure in FIGURES if figure.is_drawn(tables)] == ["fedbrb-figure3d"]
    text = "\n".join(figure_texts(tables))
    assert text.count("![") == 1
    assert text.count("runs is recorded") == 6
    assert "FedRolex Figure 3: none of its 55 runs is recorded." in text
    assert "FedBRB Figure 6: none of its 18 runs is recorded." in text


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
    assert "Drawn from 3 of the 55 runs it needs." in "\n".join(figure_texts(find_tables(records)))


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
    old = [record(table, "fedrolex", 60.0), record(table, "smallest", 30.0)]
    assert not BY_NAME["fedrolex-figure5"].is_drawn(find_tables(old))  # earlier records hold a mean alone
    ours = record(table, "fedrolex", 60.0, clients=[[0.95, 0], [0.97, 4], [0.1, 4], [None, 1]])
    again = record(table, "fedrolex", 60.0, seed=2, clients=[[0.5, 0]])
    smallest = record(table, "smallest", 30.0, clients=[[0.5, 0]])
    (axes,) = axes_of("fedrolex-figure5", [ours, again, smallest])
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert [sum(bars) for bars in heights] == [4, 1]
    assert [heights[0][place] for place in (2, 12, 23, 24)] == [1, 1, 1, 1]  # 25 bars of 4 %
    assert axes.get_title() == "CIFAR-10, 2 labels per client"


def test_a_figure_without_the_papers_own_method_is_not_drawn_and_says_what_it_lacks(tmp_path):
    clients = [[0.5, 0]]
    records = [record(f"fedrolex/table4-cifar10-{kind}", "smallest", 30.0, clients=clients) for kind in ("high", "low")]
    figure = BY_NAME["fedrolex-figure5"]
    drawn = find_tables([record("fedrolex/table4-cifar10-high", "fedrolex", 60.0, clients=clients), *records])
    paths = write_figures(drawn, tmp_path, figures=[figure])
    assert [path.exists() for path in paths] == [True, True]
    tables = find_tables(records)
    assert "2 of its 8 runs are recorded, but none of the 4 of FedRolex. It shows" in "\n".join(figure_texts(tables))
    assert "1 of its 8 runs is recorded, but" in "\n".join(figure_texts(find_tables(records[:1])))
    (tmp_path / "else.png").touch()
    assert write_figures(tables, tmp_path, figures=[figure]) == []
    assert [path.name for path in tmp_path.iterdir()] == ["else.png"], "no image is left that the page does not show"
    beside = [record("fedrolex/figure4-cifar10", "gamma-4/high/feddropout", 50.0)]
    assert not BY_NAME["fedrolex-figure4"].is_drawn(find_tables(beside))


def test_the_images_in_the_repository_are_those_of_the_page():
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    there = {path.stem for path in (ROOT / "docs" / "images" / "results").iterdir()}
    assert there == {name for name in BY_NAME if f"images/results/{name}.png" in page}


def test_fedbrb_figure_5_shows_ours_beside_the_published():
    table = "fedbrb/table3-cifar10-dynamic"
    (axes,) = axes_of("fedbrb-figure5", [record(table, "a0-c1-e1/non-iid-2/fedbrb", 60.0)])
    found = [(line.get_label(), list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert ("ours", [2], [60.0]) in found
    assert ("paper", [2], [66.33]) in found
    assert sum(label == "ours" for label, _, _ in found) == 1
    assert ("1/16 trained whole, paper", [0, 1], [62.57, 62.57]) in found


def test_fedbrb_figure_6_sets_runs_without_the_smallest_clients_beside_table_4():
    records = [
        record("fedbrb/table4-cifar10-fixed", "a0-b1-e1/iid/fedbrb", 80.0),
        record("fedbrb/figure6-cifar10", "a0-b1-e1/iid", 82.0),
    ]
    (axes,) = axes_of("fedbrb-figure6", records)
    found = [(line.get_label(), list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert ("all clients", [2.9], [80.0]) in found
    assert ("without e", [3.1], [82.0]) in found


@pytest.fixture(scope="module")
def plan():
    return trace(build("preresnet18"), example_inputs("preresnet18"))


def test_figure_3d_by_hand(plan):
    """At 1/4 of 512: HeteroFL trains 128 x 128; FedRolex the weights between units less than 128 apart around the
    circle, 255/512 of all; FedBRB all."""
    tensor = [name for name, shape in plan.shapes.items() if shape[:2] == (512, 512)][-1]
    share = {name: share_trained(plan, name, tensor, (512,))[0] for name in ("heterofl", "fedrolex", "fedbrb")}
    assert (share["heterofl"] > 0).mean() == 1 / 16
    assert (share["fedrolex"] > 0).mean() == 255 / 512
    assert (share["fedbrb"] > 0).mean() == 1
    apart = (np.arange(512)[:, None] - np.arange(512)) % 512
    assert ((share["fedrolex"] > 0) == (np.minimum(apart, 512 - apart) < 128)).all()


def test_files_are_written_for_what_is_drawn(tmp_path):
    tables = find_tables([record("fedrolex/figure6-cifar10", "r-0.5/high", 50.0)])
    only = [figure for figure in FIGURES if figure.name == "fedrolex-figure6"]
    paths = write_figures(tables, tmp_path, figures=only)
    assert [path.name for path in paths] == ["fedrolex-figure6.png", "fedrolex-figure6.svg"]
    assert "overlap r" in paths[1].read_text()
