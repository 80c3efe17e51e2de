"""What the page says of entries beside each other, with numbers worked by hand."""

import json
import math

from run_folders import lines, write_run

from fedwidth.report.comparison_views import classes_view, comparison_view, grid_view, reached_view
from fedwidth.report.describe import describe
from fedwidth.report.entries import group_runs
from fedwidth.report.runs import read_runs
from fedwidth.run.about import About, read_about


def write_entry(folder, name, *accuracies, **settings):
    """Runs of one entry, one a seed, that end at these accuracies."""
    for seed, accuracy in enumerate(accuracies, 1):
        metrics = lines(12, accuracy=lambda round, a=accuracy: a * round / 12)
        write_run(folder / f"seed-{seed}", name, seed=seed, metrics=metrics, **settings)


def add_to_summary(folder, **facts):
    """What a run's summary says besides."""
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def entries_of(folder):
    return group_runs(read_runs([folder]))


def test_differences_are_said_as_everywhere(tmp_path):
    write_entry(tmp_path / "a", "A", 0.81, 0.82, 0.83)
    write_entry(tmp_path / "b", "B", 0.80, 0.80, 0.80, method="heterofl")
    write_entry(tmp_path / "c", "C", 0.50, 0.51, 0.52, method="feddropout")
    found = comparison_view(entries_of(tmp_path), About())
    assert (found["lead"], found["leading"]) == (0, "")
    # 1, 2, 3: mean 2, error 0.577, times 4.30; 31 thrice.
    assert found["sentences"] == [
        "Between A and B it is not decided (difference +2.0, 95 %: −0.5 to +4.5, three seeds).",
        "A is 31.0 points above C (95 %: 31.0 to 31.0, three seeds).",
    ]


def test_a_run_that_goes_on_is_not_compared_yet(tmp_path):
    write_entry(tmp_path / "a", "A", 0.8)
    write_run(tmp_path / "b", "B", finished=False, done=6, method="heterofl")
    found = comparison_view(entries_of(tmp_path), About())
    assert found["sentences"] == []


def test_the_gain_over_yardsticks_that_are_in_the_folder(tmp_path):
    devices = '\n[devices]\ncapacities = "a1-b1-c1"\nper_round = 3\n'
    write_entry(tmp_path / "a", "Mine", 0.80, 0.82)
    write_entry(tmp_path / "small", "Small", 0.60, 0.60, method="fedavg")
    write_entry(tmp_path / "full", "Full", 0.90, 0.90, method="fedavg")
    for seed in (1, 2):
        for name, width, capacities in (("small", "0.25", "a1"), ("full", "1.0", "a1")):
            path = tmp_path / name / f"seed-{seed}" / "config.toml"
            text = path.read_text().replace(devices.strip(), f'[devices]\ncapacities = "{capacities}"\nper_round = 3')
            path.write_text(text.replace("[model]\n", f"[model]\nwidth = {width}\n"))
        add_to_summary(tmp_path / "a" / f"seed-{seed}", together_accuracy=0.84 + 0.02 * seed, chosen_accuracy=None)
    found = comparison_view(entries_of(tmp_path), About())
    mine = found["rows"][found["lead"]]
    assert (mine["gain"], mine["over"]) == ("+21.0 (+8.3 to +33.7)", "smallest for all")  # 20, 22: error 1, times 12.71
    labels = [entry.label for entry in entries_of(tmp_path)]
    assert {kind: labels[place] for kind, place in mine["yardsticks"].items()} == {
        "smallest for all": "Small",
        "full for all": "Full",
    }
    assert found["yardsticks"] == [
        "Yardsticks of Mine: smallest for all 60.0 ± 0.0 % (two seeds), full for all 90.0 ± 0.0 % (two seeds)."
    ]
    assert found["rows"][labels.index("Small")]["gain"] == ""
    assert found["rows"][labels.index("Small")]["together"] is None
    assert mine["together"] == {  # 26, 28
        "which": "all widths together",
        "accuracy": "87.0 ± 1.4 % (two seeds)",
        "gain": "+27.0 (+14.3 to +39.7)",
        "over": "smallest for all",
        "verdict": "above",
    }
    for seed in (1, 2):
        add_to_summary(tmp_path / "a" / f"seed-{seed}", chosen_accuracy=0.9)
    (own, *_) = (row["together"] for row in comparison_view(entries_of(tmp_path), About())["rows"] if row["together"])
    assert own["which"] == "the widths that validation samples choose, one or several"
    assert own["accuracy"].startswith("90.0 ")


def sweep(tmp_path, *, validation=()):
    accuracies = {("fedrolex", "0.1"): 0.5, ("fedrolex", "0.2"): 0.9, ("heterofl", "0.1"): 0.7}
    cells = {}
    for number, (values, accuracy) in enumerate(accuracies.items()):
        folder = tmp_path / f"cell-{number}" / "seed-1"
        write_run(folder, f"cell {number}", metrics=lines(12, accuracy=lambda _, a=accuracy: a), method=values[0])
        if validation:
            summary = json.loads((folder / "summary.json").read_text())
            (folder / "summary.json").write_text(json.dumps(summary | {"validation_accuracy": validation[number]}))
        cells[f"cell-{number}"] = values
    about = About("A title", [("method.name", ("fedrolex", "heterofl")), ("training.lr", ("0.1", "0.2"))], cells)
    about.write(tmp_path)
    return about


def test_a_sweep_opens_with_its_best_and_shows_a_grid(tmp_path):
    sweep(tmp_path)
    assert read_about(tmp_path).title == "A title"
    data = describe(entries_of(tmp_path), folders=[tmp_path])
    assert data["comparison"]["lead"] == 1
    assert data["comparison"]["leading"].startswith("Best by test accuracy: cell 1, 90.0 % (one seed). Chosen on the")
    assert data["comparison"]["sentences"] == [
        "One seed: differences have no interval, and decide nothing. --seeds 1,2,3 compares."
    ]
    assert data["grid"] == {
        "across": "training.lr",
        "down": ["method.name"],
        "columns": ["0.1", "0.2"],
        "rows": [["fedrolex"], ["heterofl"]],
        "cells": [[0, 1], [2, None]],
    }


def test_the_best_is_chosen_by_validation_where_there_is_one(tmp_path):
    about = sweep(tmp_path, validation=(0.6, 0.4, 0.8))
    found = comparison_view(entries_of(tmp_path), about)
    assert found["lead"] == 2
    assert found["leading"] == (
        "Best by validation accuracy: cell 2, 80.0 % (one seed). On the test set it has 70.0 % (one seed)."
    )


def test_a_folder_that_says_nothing_or_nonsense_of_itself(tmp_path):
    assert read_about(tmp_path) == About()
    for text in ("", "[]", '{"title": "x"}', '{"title": "x", "over": [["a"]], "cells": {}}', "{"):
        (tmp_path / "about.json").write_text(text)
        assert read_about(tmp_path) == About()
    About().write(tmp_path)
    assert not (tmp_path / "about.json").exists()


def test_what_it_took_to_reach_an_accuracy(tmp_path):
    # Seeds at 0.06 and 0.08 a round, measured every second: the mean passes 0.5 in round 8 (0.56), 0.8 in 12 (0.84).
    for seed, slope in ((1, 0.06), (2, 0.08)):
        metrics = lines(12, accuracy=lambda round, s=slope: s * round)
        for line in metrics:
            line["device_seconds"] = 10.0 * seed
        write_run(tmp_path / "a" / f"seed-{seed}", "A", seed=seed, metrics=metrics)
    found = reached_view(entries_of(tmp_path))
    assert found["targets"] == [0.4, 0.5, 0.6, 0.7, 0.75, 0.8]
    (row,) = found["rows"]
    by_target = dict(zip(found["targets"], row, strict=True))
    assert by_target[0.5] == {"round": 8, "sent": 12000.0, "seconds": 4.0, "device_seconds": 120.0}
    assert by_target[0.8]["round"] == 12
    write_run(tmp_path / "b", "B", metrics=lines(12, accuracy=lambda _: 0.1))
    assert reached_view(entries_of(tmp_path))["rows"][1][-1] is None


def test_accuracy_by_class_over_seeds(tmp_path):
    assert classes_view([]) is None
    for seed, found in ((1, [0.5, 1.0, None]), (2, {"0": 0.7, "1": 0.9, "2": None})):
        folder = write_run(tmp_path / f"seed-{seed}", "A", seed=seed)
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(summary | {"class_accuracy": found}))
    (row,) = classes_view(entries_of(tmp_path))["rows"]
    assert row["means"][:2] == [0.6, 0.95]
    assert math.isnan(row["means"][2])
    write_run(tmp_path / "b", "B")
    assert len(classes_view(entries_of(tmp_path))["rows"]) == 1


def test_no_grid_where_nothing_was_swept(tmp_path):
    write_run(tmp_path / "a", "A")
    assert grid_view(entries_of(tmp_path), tmp_path, About("title")) is None
