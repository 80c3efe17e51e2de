import math

import numpy as np
import pytest
from run_folders import lines, write_run

from fedwidth.report import read_runs
from fedwidth.report.entries import curve_of, group_runs, spread, thin_curve


def entries(*folders):
    return group_runs(read_runs(folders))


def test_runs_that_differ_in_the_seed_alone_are_one_entry(tmp_path):
    write_run(tmp_path / "seed-1", "x", seed=1)
    write_run(tmp_path / "seed-2", "x", seed=2, extra="workers = 3")
    write_run(tmp_path / "other", "x", seed=2, rounds=14)
    found = entries(tmp_path)
    assert [[run.seed for run in entry.runs] for entry in found] == [[2], [1, 2]]


def test_a_copy_of_a_run_is_not_a_second_seed(tmp_path):
    found = entries(write_run(tmp_path / "a", "x"), write_run(tmp_path / "b", "x"))
    assert [len(entry.runs) for entry in found] == [1, 1]
    assert len({entry.label for entry in found}) == 2


def test_labels_come_from_name_then_folder_then_method(tmp_path):
    write_run(tmp_path / "seed-3", method="heterofl")
    write_run(tmp_path / "compare" / "wide" / "seed-3", method="fedbrb")
    write_run(tmp_path / "compare" / "named" / "seed-3", "My run")
    assert [entry.label for entry in entries(tmp_path)] == ["HeteroFL", "My run", "wide"]


def test_mean_and_band_over_seeds(tmp_path):
    for seed, accuracy in ((1, 0.2), (2, 0.4), (3, 0.9)):
        metrics = lines(4, accuracy=lambda round, a=accuracy: a)
        write_run(tmp_path / f"seed-{seed}", "x", seed=seed, metrics=metrics)
    (entry,) = entries(tmp_path)
    curve = curve_of(entry, "global_accuracy")
    assert curve.rounds.tolist() == [2, 4]
    assert curve.mean.tolist() == pytest.approx([0.5, 0.5])
    assert (curve.low.tolist(), curve.high.tolist()) == ([0.2, 0.2], [0.9, 0.9])
    assert curve.sent.tolist() == [3000, 6000]
    assert curve.macs.tolist() == [14000, 28000]


def test_one_diverged_seed_makes_a_gap_and_not_a_better_mean(tmp_path):
    for seed, accuracy in ((1, 0.9), (2, math.nan)):
        write_run(tmp_path / f"seed-{seed}", "x", seed=seed, metrics=lines(2, accuracy=lambda round, a=accuracy: a))
    (entry,) = entries(tmp_path)
    assert np.isnan(curve_of(entry, "global_accuracy").mean).all()


def test_a_killed_seed_leaves_the_others_their_line(tmp_path):
    write_run(tmp_path / "seed-1", "x", seed=1)
    write_run(tmp_path / "seed-2", "x", seed=2, finished=False, done=4)
    (entry,) = entries(tmp_path)
    assert curve_of(entry, "global_accuracy").rounds.tolist() == [2, 4, 6, 8, 10, 12]


def test_bands_keep_their_extremes_when_thinned(tmp_path):
    for seed in (1, 2, 3):
        draws = np.random.default_rng(seed).random(2001)
        metrics = lines(2000, every=1, accuracy=lambda round, d=draws: float(d[round]))
        write_run(tmp_path / f"seed-{seed}", "x", seed=seed, rounds=2000, metrics=metrics)
    (entry,) = entries(tmp_path)
    whole = curve_of(entry, "global_accuracy")
    few = thin_curve(whole, 400)
    assert len(few.rounds) <= 400
    for name, pick in (("mean", min), ("mean", max), ("low", min), ("high", max)):
        assert pick(getattr(few, name)) == pick(getattr(whole, name))


def test_a_metric_nobody_measured_has_no_curve(tmp_path):
    (entry,) = entries(write_run(tmp_path / "a", metrics=[{"round": 1}]))
    assert curve_of(entry, "global_accuracy") is None


def test_spread():
    assert spread([1.0, 3.0, math.nan]) == {
        "mean": 2.0,
        "deviation": pytest.approx(math.sqrt(2)),
        "low": 1.0,
        "high": 3.0,
        "count": 2,
        "lost": 1,
    }
    assert spread([0.5])["deviation"] is None
