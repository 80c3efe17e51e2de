import json

import pytest
from run_folders import lines, write_run

from fedwidth.report import read_runs
from fedwidth.report.client_views import devices_view, gains_views, merge_equal, split_view, widths_views
from fedwidth.report.entries import group_runs
from fedwidth.report.rebuild import ModelRebuilder


def entries(*folders):
    return group_runs(read_runs(folders))


def with_clients(folder, rows):
    write_run(folder)
    (folder / "clients.json").write_text(json.dumps(rows))
    return folder


def test_gains_by_capacity_largest_first(tmp_path):
    rows = [{"capacity": c, "accuracy": a} for c, a in ((0.25, 0.5), (1, 0.9), (0.25, 0.7), (0.25, None))]
    found = gains_views(entries(with_clients(tmp_path / "a", rows)))
    (view,) = found["views"]
    full, quarter = view["levels"]
    assert (full["capacity"], full["clients"], full["mean"]) == (1.0, 1, 0.9)
    assert (quarter["clients"], quarter["mean"]) == (2, pytest.approx(0.6))
    assert quarter["quantiles"] == pytest.approx([0.5, 0.55, 0.6, 0.65, 0.7])
    assert found["low"] == 0.5
    assert sum(quarter["bins"]) == 2


def test_accuracy_at_each_width_over_seeds_and_none_for_whole_models(tmp_path):
    write_run(tmp_path / "a" / "seed-1", "x", seed=1)
    write_run(tmp_path / "a" / "seed-2", "x", seed=2)
    write_run(tmp_path / "b", "whole", method="fedavg")
    found = entries(tmp_path)
    rebuilder = ModelRebuilder()
    views = widths_views(found, [rebuilder.rebuild(entry.first) for entry in found])
    (view,) = views["views"]
    assert [(level["capacity"], level["count"]) for level in view["levels"]] == [(0.25, 2), (1.0, 2)]
    assert view["levels"][0]["mean"] == pytest.approx(0.43)
    assert views["whole"] == [1]
    assert views["validated"] == []


def test_a_run_whose_clients_hold_the_whole_model_says_so_where_it_measured_no_narrower_one(tmp_path):
    found = [{key: value for key, value in line.items() if key != "capacity_accuracy"} for line in lines(4)]
    found[-1]["capacity_accuracy"] = {"1": 0.5}
    asked = "evaluation.capacities = [1, 0.25]"
    write_run(tmp_path / "a", "both", method="fedavg", metrics=found, extra=asked)
    write_run(tmp_path / "b", "whole alone", method="fedavg", metrics=found)
    narrow = [{key: value for key, value in line.items() if key != "capacity_accuracy"} for line in found]
    write_run(tmp_path / "c", "narrow alone", method="fedavg", metrics=narrow, extra="evaluation.capacities = [0.25]")
    runs = entries(tmp_path)
    rebuilder = ModelRebuilder()
    views = widths_views(runs, [rebuilder.rebuild(entry.first) for entry in runs])
    assert [runs[place].label for place in views["whole"]] == ["both", "narrow alone"]
    assert [runs[view["entry"]].label for view in views["views"]] == ["whole alone"]


def test_accuracies_of_widths_that_are_of_validation_samples_are_named(tmp_path):
    write_run(tmp_path / "a", "tested")
    write_run(tmp_path / "b", "untested", extra="evaluation.test = false")
    found = entries(tmp_path)
    assert widths_views(found, ["not built"] * 2)["validated"] == [1]


def test_devices_mix_and_costs_of_an_mlp_by_hand(tmp_path):
    (entry,) = entries(write_run(tmp_path / "a"))
    view = devices_view(entry, ModelRebuilder().rebuild(entry.first))
    assert [(level["capacity"], level["count"]) for level in view["levels"]] == [(1.0, 2), (0.5, 2), (0.25, 2)]
    # 64-12-6-10, and at a half 64-6-3-10: weights and biases; multiply-adds are the weights.
    assert [level["parameters"] for level in view["levels"][:2]] == [12 * 65 + 6 * 13 + 10 * 7, 6 * 65 + 3 * 7 + 10 * 4]
    assert view["levels"][0]["macs"] == 64 * 12 + 12 * 6 + 6 * 10
    assert (view["sent"], view["macs"]) == (1500 / 3, 7000 / 3)


def test_devices_that_change_each_round_are_counted_by_update(tmp_path):
    (entry,) = entries(write_run(tmp_path / "a", clients=False))
    view = devices_view(entry, "no model here")
    assert view["counted"] == "updates"
    assert [(level["capacity"], level["count"]) for level in view["levels"]] == [(1.0, 12), (0.5, 12), (0.25, 12)]
    assert view["reason"] == "no model here"


def test_the_split_draws_a_sample_of_many_clients(tmp_path):
    rows = [{"client": c, "labels": [c % 300], "samples": 5} for c in range(1000)]
    view = split_view(read_runs([with_clients(tmp_path / "a", rows)])[0])
    assert (view["total"], view["labels"], view["drawn"], len(view["clients"])) == (1000, 300, 100, 100)
    assert (view["clients"][0]["client"], view["clients"][-1]["client"]) == (0, 999)
    assert split_view(read_runs([with_clients(tmp_path / "b", [{"labels": "all"}, 3])])[0]) is None


def test_the_split_counts_samples_of_labels(tmp_path):
    rows = [
        {"client": 0, "labels": [7, 2], "counts": [3, 11], "samples": 14},
        {"client": 1, "labels": [120, 2], "counts": [5, 40], "samples": 45},
    ]
    view = split_view(read_runs([with_clients(tmp_path / "a", rows)])[0])
    assert view["most"] == 40
    assert [(client["labels"], client["counts"]) for client in view["clients"]] == [([2, 7], [11, 3]), ([2], [40])]


@pytest.mark.parametrize("counts", [None, [3], [3, -1], [3, 1.5], [3, True], "34", [3, 10**400]])
def test_a_split_whose_counts_make_no_sense_shows_labels_alone(tmp_path, counts):
    rows = [{"labels": [0, 1], "counts": [3, 4], "samples": 7}, {"labels": [0, 1], "counts": counts, "samples": 4}]
    view = split_view(read_runs([with_clients(tmp_path / "a", rows)])[0])
    assert view["most"] == 0
    assert [client["labels"] for client in view["clients"]] == [[0, 1], [0, 1]]
    assert all("counts" not in client for client in view["clients"])


def test_equal_views_are_shown_once():
    found = merge_equal([(0, {"x": 1}), (1, {"x": 2}), (2, {"x": 1}), (3, None)])
    assert found == [{"x": 1, "entries": [0, 2]}, {"x": 2, "entries": [1]}]
