import math
from functools import partial

import pytest
from run_folders import lines, write_run

from fedwidth.errors import OptionError
from fedwidth.report import read_runs, write_figures
from fedwidth.report.describe import describe
from fedwidth.report.drawings import draw_coverage, draw_curves
from fedwidth.report.entries import group_runs
from fedwidth.report.plotting import save

CURVES = ("accuracy", "local-accuracy", "loss", "train-loss")
EVERY = {
    *(f"{curve}{over}" for curve in CURVES for over in ("", "-by-bytes", "-by-operations")),
    *("compared", "coverage", "evenness", "share-trained", "who-gains", "widths", "devices", "split"),
}


def test_each_figure_of_the_page_as_png_and_svg(tmp_path):
    write_run(tmp_path / "runs" / "seed-1", "$x_{1", seed=1)
    write_run(tmp_path / "runs" / "seed-2", "$x_{1", seed=2, metrics=lines(12, accuracy=lambda round: 0.4))
    write_run(tmp_path / "runs" / "b", "_hidden <b>", metrics=lines(6, accuracy=lambda round: math.nan), counts=False)
    write_run(tmp_path / "runs" / "c", "other", method="fedbrb", finished=False, done=5)
    paths = write_figures([tmp_path / "runs"], tmp_path / "figures")
    assert {path.name for path in paths} == {f"{name}.{format}" for name in EVERY for format in ("png", "svg")}
    for path in paths:
        start = path.read_bytes()[:5]
        assert start == (b"\x89PNG\r" if path.suffix == ".png" else b"<?xml")
    svg = (tmp_path / "figures" / "accuracy.svg").read_text()
    assert "$x_{1" in svg
    assert "_hidden &lt;b&gt;" in svg
    assert "after round 12" in (tmp_path / "figures" / "coverage.svg").read_text()
    assert "samples of a label" in (tmp_path / "figures" / "split.svg").read_text()
    assert "this mix" in (tmp_path / "figures" / "devices.svg").read_text()


def test_equal_runs_give_equal_figures(tmp_path):
    data = describe(group_runs(read_runs([write_run(tmp_path / "a")])))
    names = {"accuracy": partial(draw_curves, metric="global_accuracy", axis="rounds"), "coverage": draw_coverage}
    first, second = ([p for n, d in names.items() for p in save(tmp_path / to, n, d, data)] for to in ("1", "2"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_accuracies_stand_on_an_axis_from_0_to_100(tmp_path):
    """Two runs a few points apart must look a few points apart."""
    near = [
        write_run(tmp_path / str(at), metrics=lines(6, accuracy=lambda round, at=at: 0.80 + at)) for at in (0.0, 0.02)
    ]
    data = describe(group_runs(read_runs(near)))
    for metric, limits in (("global_accuracy", (0, 100)), ("local_accuracy", (0, 100))):
        (plot, *_) = draw_curves(data, metric, "rounds").axes
        assert plot.get_ylim() == limits, metric


def test_what_nobody_measured_has_no_figure(tmp_path):
    folder = write_run(tmp_path / "a", metrics=[{"round": 1, "train_loss": 1.0}])
    (folder / "clients.json").unlink()
    assert {path.stem for path in write_figures([folder], tmp_path / "f")} == {"train-loss"}


def test_a_file_in_the_way_is_refused(tmp_path):
    folder = write_run(tmp_path / "a")
    (tmp_path / "taken").write_text("")
    with pytest.raises(OptionError, match="taken"):
        write_figures([folder], tmp_path / "taken")
