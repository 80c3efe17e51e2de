import math

import pytest
from run_folders import lines, write_run

from fedwidth.errors import OptionError
from fedwidth.report import write_figures


def test_each_curve_as_png_and_svg(tmp_path):
    write_run(tmp_path / "runs" / "seed-1", "$x_{1", seed=1)
    write_run(tmp_path / "runs" / "seed-2", "$x_{1", seed=2)
    write_run(tmp_path / "runs" / "b", "_hidden <b>", metrics=lines(6, accuracy=lambda round: math.nan))
    paths = write_figures([tmp_path / "runs"], tmp_path / "figures")
    assert {path.name for path in paths} >= {"accuracy.png", "accuracy.svg", "loss.png", "loss.svg"}
    for path in paths:
        start = path.read_bytes()[:5]
        assert start == (b"\x89PNG\r" if path.suffix == ".png" else b"<?xml")
    svg = (tmp_path / "figures" / "accuracy.svg").read_text()
    assert "$x_{1" in svg
    assert "_hidden &lt;b&gt;" in svg


def test_equal_runs_give_equal_figures(tmp_path):
    folder = write_run(tmp_path / "a")
    first, second = (write_figures([folder], tmp_path / name) for name in ("1", "2"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_what_nobody_measured_has_no_figure(tmp_path):
    folder = write_run(tmp_path / "a", metrics=[{"round": 1, "train_loss": 1.0}])
    assert [path.name for path in write_figures([folder], tmp_path / "f")] == ["train-loss.png", "train-loss.svg"]


def test_a_file_in_the_way_is_refused(tmp_path):
    folder = write_run(tmp_path / "a")
    (tmp_path / "taken").write_text("")
    with pytest.raises(OptionError, match="taken"):
        write_figures([folder], tmp_path / "taken")
